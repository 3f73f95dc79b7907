"""The tests. Each names the clause of the contract that it checks; see ``docs/contract.md``."""

import hypothesis

# Every run, on every backend, draws the same examples.
hypothesis.settings.register_profile("unigrad", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("unigrad")
