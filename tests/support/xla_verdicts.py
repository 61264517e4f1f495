"""What XLA's parser says of a text, asked in a process of its own: some texts end XLA's."""

import base64
import json
import subprocess
import sys
from typing import Any


class Verdicts:
    """Asks a process, and starts another where a text ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, text: str) -> tuple[bytes | None, str]:
        """The proto XLA makes of ``text``, or why it does not; (None, "") where its process ends."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, __file__]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(text) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            self.close()
            return None, ""
        said: dict[str, Any] = json.loads(answer)
        return (base64.b64decode(said["proto"]), "") if "proto" in said else (None, said["refused"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve() -> None:
    from jaxlib import _hlo

    for line in sys.stdin:
        try:
            proto = _hlo.hlo_module_from_text(json.loads(line)).as_serialized_hlo_module_proto()
            answer = {"proto": base64.b64encode(proto).decode()}
        except Exception as error:
            answer = {"refused": f"refused: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
