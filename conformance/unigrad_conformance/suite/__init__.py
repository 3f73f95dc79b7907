"""The tests. Each names the clause of the contract that it checks; see ``docs/contract.md``."""
