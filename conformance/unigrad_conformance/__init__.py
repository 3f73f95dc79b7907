"""The conformance suite of unigrad: tests that run against a backend by name, and the command that runs them.

``unigrad check NAME`` runs it. Nothing here imports a framework or a backend by name.
"""
