"""The variables that keep TensorFlow from logging, set before a test file imports it."""

import os

from unigrad.declarations import declaration

for _name, _value in declaration("tensorflow").quiet.items():
    os.environ.setdefault(_name, _value)
