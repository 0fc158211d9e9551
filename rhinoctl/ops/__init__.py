"""Operations: what the verbs do, without how it is typed or shown.

Each reads facts, makes a typed plan, and runs it; what a person is shown is a dataclass.
"""
