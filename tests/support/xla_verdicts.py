"""What XLA says of a text, asked in a process of its own: some texts end XLA's.

Its parser is asked first. Its verifier has no entry of its own: the CPU client runs it before it compiles.
"""

import base64
import json
import os
import subprocess
import sys
from typing import Any


class Verdicts:
    """Asks a process, and starts another where a text ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, text: str) -> tuple[bytes | None, str]:
        """The proto XLA makes of ``text``, or why it does not; (None, "") where its process ends."""
        said = self._ask(text, False)
        if said is None:
            return None, ""
        return (base64.b64decode(said["proto"]), "") if "proto" in said else (None, said["refused"])

    def compiles(self, text: str) -> str:
        """ "" if the CPU client compiles ``text``, else why it does not, or "ended"."""
        said = self._ask(text, True)
        return "ended" if said is None else said.get("refused", "")

    def _ask(self, text: str, whole: bool) -> dict[str, Any] | None:
        if self._process is None or self._process.poll() is not None:
            pipe = subprocess.PIPE
            flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | flags,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([text, whole]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            self.close()
            return None
        said: dict[str, Any] = json.loads(answer)
        return said

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve() -> None:
    from jaxlib import _hlo

    for line in sys.stdin:
        text, whole = json.loads(line)
        try:
            proto = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
            answer = {"proto": base64.b64encode(proto).decode()}
            if whole:
                from xla_oracle import compile_proto

                compile_proto(proto)
        except Exception as error:
            answer = {"refused": f"refused: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
