#!/bin/sh
# Makes the key of every process and the accounts file of the servers, and lays out for each process its own key alone.
# NODES: "<id>=<url> ..."; safe to run again, what is there stays.
set -eu
data=${DATA:-/var/lib/leaseway}
keys=${KEYS:-/keys}

leaseway provision --keys-only --data "$data" --gateway main
for node in $NODES; do
  leaseway provision --keys-only --data "$data" --node "${node%%=*}" --url "${node#*=}"
done

give() { # <process> <file>
  mkdir -p -m 700 "$keys/$1"
  install -m 600 "$2" "$keys/$1/"
}
give master "$data/keys/master.json"
give projector "$data/keys/projector.json"
give gateway-main "$data/keys/gateway-main.json"
for node in $NODES; do
  give "${node%%=*}" "$data/keys/${node%%=*}.json"
done
mkdir -p "$keys/bus"
install -m 644 "$data/nats/accounts.conf" "$keys/bus/"
