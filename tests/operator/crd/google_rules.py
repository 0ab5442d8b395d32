"""Runs rules with Google's implementation of CEL, beside the one that the test API server uses."""

import functools

from cel_expr_python import cel as google

from resilin.testing.kube import rules

_ENVIRONMENT = google.NewEnv(variables={"self": google.Type.DYN, "oldSelf": google.Type.DYN})


class GoogleRule:
    """One rule, compiled and checked for its types."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.compares = rules.compares(text)
        self._program = _ENVIRONMENT.compile(text)

    def problem(self, value: object, old: object) -> str | None:
        """None if the rule holds; "" if not; what went wrong if it could not be told."""
        result = self._program.eval(data={"self": value, "oldSelf": old}).value()
        if not isinstance(result, bool):
            return f"{self.text}: {result}"
        return None if result else ""


compiled = functools.lru_cache(maxsize=1000)(GoogleRule)
