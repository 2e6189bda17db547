"""Judges any server that speaks the wire, from outside: see ``docs/conformance.md``."""
