"""Engine of all frozen models: batching, shared prefixes, shared requests, the output layer."""
