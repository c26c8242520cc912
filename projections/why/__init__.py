"""Why: the story of a request, a lease, a commit or a model, put together from stored events. Pure.

Whoever asks gathers messages (services/past) and gives them to one function here; it returns a struct that is the JSON answer.
What was measured and what was predicted stand in fields of their own: a prediction is never shown as if it had happened.
"""
