"""The transport and the system clock: the ports Wire and Clock over Arrow Flight.

`flight.FlightWire` is the Wire of the single-threaded loops, `call.call` the way in for short-lived
callers such as Spark tasks, `clock.SystemClock` the Clock. Why Flight's DoExchange carries
everything, with the figures, is said in `frames`.
"""
