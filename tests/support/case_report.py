"""Runs the cases of a script in its process and reports them to the test that started it."""

import json
import sys
import traceback


def report(names, *captured):
    """Print, as JSON, of each function ``case_...`` among ``names`` what went wrong, "" for nothing: of those that the
    command names, if it names any.

    ``captured`` is handed to those that take an argument.
    """
    outcome, asked = {}, set(sys.argv[1:])
    for name, function in list(names.items()):
        if name.startswith("case_") and (not asked or name in asked):
            try:
                function(*captured if function.__code__.co_argcount else [])
                outcome[name] = ""
            except BaseException:
                outcome[name] = traceback.format_exc()
    json.dump(outcome, sys.__stdout__)
