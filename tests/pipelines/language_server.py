"""yaml-language-server, as an editor drives it: messages of JSON-RPC over its standard input and output."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

COMMAND: Final = shutil.which("yaml-language-server")
MISSING: Final = "needs node and, on the path, yaml-language-server: npm install -g yaml-language-server"
_PATIENCE_S: Final = 120.0
"""After so long without an answer the server is ended, and the test with an error."""
_SETTINGS: Final = {
    "yaml": {
        "validate": True,
        "hover": True,
        "completion": True,
        "schemaStore": {"enable": False},
        "format": {"enable": False},
    }
}


class LanguageServer:
    """A server that runs until the end of the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        assert COMMAND is not None
        self._folder = folder
        self._process = subprocess.Popen(
            [COMMAND, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._number = 0
        self._problems: dict[str, list[dict[str, Any]]] = {}

    def __enter__(self) -> Self:
        root = self._folder.as_uri()
        workspace = {"configuration": True, "didChangeConfiguration": {"dynamicRegistration": True}}
        documents = {"completion": {"completionItem": {"snippetSupport": True}}, "hover": {}}
        self.request(
            "initialize",
            processId=None,
            rootUri=root,
            workspaceFolders=[{"uri": root, "name": "fleet"}],
            capabilities={"workspace": workspace, "textDocument": documents},
        )
        self._notify("initialized")
        self._notify("workspace/didChangeConfiguration", settings=_SETTINGS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, name: str, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Open a file with a content; return its URI and what is wrong with it."""
        uri = (self._folder / name).as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._notify("textDocument/didOpen", textDocument=document)
        while uri not in self._problems:
            self._handle(self._receive())
        return uri, self._problems.pop(uri)

    def at(self, method: str, uri: str, line: int, character: int) -> Any:
        """Ask about a place of an open file, counted from 0: ``completion``, ``hover``."""
        place = {"line": line, "character": character}
        return self.request(f"textDocument/{method}", textDocument={"uri": uri}, position=place)

    def request(self, method: str, **parameters: Any) -> Any:
        """Return the result of a request."""
        self._number += 1
        number = self._number
        self._send({"id": number, "method": method, "params": parameters})
        while True:
            message = self._receive()
            if message.get("id") == number and "method" not in message:
                assert "error" not in message, message["error"]
                return message["result"]
            self._handle(message)

    def _notify(self, method: str, **parameters: Any) -> None:
        self._send({"method": method, "params": parameters})

    def _handle(self, message: dict[str, Any]) -> None:
        """Answer what the server asks, and keep what it finds wrong."""
        method, parameters = message.get("method"), message.get("params", {})
        if method == "textDocument/publishDiagnostics":
            self._problems[parameters["uri"]] = parameters["diagnostics"]
        elif method == "workspace/configuration":
            found = [_SETTINGS.get(item.get("section"), {}) for item in parameters["items"]]
            self._send({"id": message["id"], "result": found})
        elif "id" in message and method is not None:
            self._send({"id": message["id"], "result": None})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        patience = threading.Timer(_PATIENCE_S, self._process.kill)
        patience.start()
        try:
            assert self._process.stdout is not None
            length = 0
            while line := self._process.stdout.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self._process.stdout.read(length)
        finally:
            patience.cancel()
        if not body:
            raise EOFError("the language server has ended, or did not answer in time")
        message: dict[str, Any] = json.loads(body)
        return message
