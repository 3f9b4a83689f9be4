"""A meter that answers over HTTP: a real server in a thread, whose pages a test may change or take away."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebMeter:
    """``pages`` maps paths, with their questions, to documents or to texts; what is not there is 404."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages = pages
        self.status = 200
        """Of every answer; 0 cuts the connection."""
        self.asked: list[tuple[str, str]] = []
        """Paths and what was sent as authorization."""
        meter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                meter.asked.append((self.path, self.headers.get("Authorization", "")))
                if meter.status == 0:
                    self.close_connection = True
                    return
                page = meter.pages.get(self.path)
                page = page() if callable(page) else page
                text = (page if isinstance(page, str) else json.dumps(page)).encode()
                self.send_response(404 if page is None else meter.status)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def server(self) -> ThreadingHTTPServer:
        return self._server

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
