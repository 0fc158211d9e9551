"""The controller: store, API, driver of effects (design, section 3), and `client`, its callers' side."""
