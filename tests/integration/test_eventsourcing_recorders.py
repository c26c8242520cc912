"""The eventsourcing library's own test cases of a persistence module, on a real nats-server."""

import itertools
import os
import unittest
from unittest import mock

import pytest
from eventsourcing.tests import application as library_application
from eventsourcing.tests import persistence as library
from eventsourcing.tests import projection as library_projection
from eventsourcing.utils import Environment, get_topic

from adapters.nats.eventsourcing import JetStreamFactory
from adapters.nats.eventsourcing.link import NatsLink
from adapters.nats.eventsourcing.recorder import (
    JetStreamAggregateRecorder,
    JetStreamApplicationRecorder,
    JetStreamProcessRecorder,
    JetStreamTrackingRecorder,
    Place,
)
from tests.support.bare_nats import bare_nats_url  # noqa: F401  # a fixture

pytestmark = pytest.mark.real
MODULE = "adapters.nats.eventsourcing"
_numbers = itertools.count()


class OnServer:
    """Gives a library's case its server."""

    url: str

    @pytest.fixture(autouse=True)
    def _server(self, bare_nats_url):  # noqa: F811  # the fixture
        self.url = bare_nats_url

    def stream(self):
        return f"T{next(_numbers)}"


class WithRecorder(OnServer, unittest.TestCase):
    recorder_class: type

    def create_recorder(self):
        link = NatsLink(self.url)
        self.addCleanup(link.close)
        stream = self.stream()
        recorder = self.recorder_class(link, Place(stream=stream, events=f"{stream}.e", tracking=f"{stream}.t"))
        recorder.create()
        return recorder


class TestAggregateRecorder(WithRecorder, library.AggregateRecorderTestCase):
    recorder_class = JetStreamAggregateRecorder


class TestApplicationRecorder(WithRecorder, library.ApplicationRecorderTestCase):
    recorder_class = JetStreamApplicationRecorder

    def test_insert_subscribe(self):
        self.optional_test_insert_subscribe()


class TestTrackingRecorder(WithRecorder, library.TrackingRecorderTestCase):
    recorder_class = JetStreamTrackingRecorder


class TestProcessRecorder(WithRecorder, library.ProcessRecorderTestCase):
    recorder_class = JetStreamProcessRecorder


class TestNonInterleaving(WithRecorder, library.NonInterleavingNotificationIDsBaseCase):
    recorder_class = JetStreamApplicationRecorder
    insert_num = 1000


class OwnTrackingRecorder(JetStreamTrackingRecorder):
    pass


class TestFactory(OnServer, library.InfrastructureFactoryTestCase[JetStreamFactory]):
    def setUp(self):
        self.env = Environment(
            f"Case{next(_numbers)}", {"PERSISTENCE_MODULE": MODULE, "NATS_URL": self.url, "CREATE_TABLE": "y"}
        )
        super().setUp()

    def expected_factory_class(self):
        return JetStreamFactory

    def expected_aggregate_recorder_class(self):
        return JetStreamAggregateRecorder

    def expected_application_recorder_class(self):
        return JetStreamApplicationRecorder

    def expected_tracking_recorder_class(self):
        return JetStreamTrackingRecorder

    def tracking_recorder_subclass(self):
        return OwnTrackingRecorder

    def expected_process_recorder_class(self):
        return JetStreamProcessRecorder


class TestExampleApplication(OnServer, library_application.ExampleApplicationTestCase):
    expected_factory_topic = get_topic(JetStreamFactory)

    def setUp(self):
        env = {"PERSISTENCE_MODULE": MODULE, "NATS_URL": self.url, "CREATE_TABLE": "y", "JS_STREAM": self.stream()}
        patched = mock.patch.dict(os.environ, env)
        patched.start()
        self.addCleanup(patched.stop)


class TestEventSourcedProjection(OnServer, library_projection.EventSourcedProjectionTestCase):
    def setUp(self):
        # Two applications, two streams, told apart by the variables' prefix.
        type(self).env = {
            "PERSISTENCE_MODULE": MODULE,
            "NATS_URL": self.url,
            "CREATE_TABLE": "y",
            "APPLICATION_JS_STREAM": self.stream(),
            "COUNTERS_JS_STREAM": self.stream(),
        }
