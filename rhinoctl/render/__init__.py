"""How things look: tables for eyes and JSON for machines, both from the same dataclasses."""
