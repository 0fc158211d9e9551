"""The controller: its store, its API, its driver of effects; `client` is the callers' side."""
