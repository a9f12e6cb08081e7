"""Stands in for `python -m sglang.launch_server`: answers what SGLang of some version answers."""

import http.server
import json
import os
import sys

arguments = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv if "=" in word)
histogram = os.environ["STAND_IN_HISTOGRAM"]
print("loading the model", flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(200 if self.path == "/model_info" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body["input_ids"]:
            self.answer(400, {"error": "empty prompt"})
            return
        wanted = body["sampling_params"]["max_new_tokens"]
        told = {"finish_reason": {"type": "length"}, "spec_verify_ct": 3, histogram: [1, 0, 1, 1]}
        if body.get("stream"):
            self.stream(wanted, told)
            return
        self.answer(200, {"output_ids": list(range(wanted)), "meta_info": told})

    def stream(self, wanted: int, told: dict) -> None:
        """Pieces of two ids: new ones, or all so far, as versions differ."""
        self.send_response(200)
        self.end_headers()
        if wanted == 1:
            del told[histogram]
        for end in range(2, wanted + 2, 2):
            end = min(end, wanted)
            begin = 0 if histogram == "spec_accept_histogram" else end - 2
            finished = told if end == wanted else {"finish_reason": None}
            content = {
                "output_ids": list(range(begin, end)),
                "meta_info": {**finished, "completion_tokens": end},
            }
            self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
            self.wfile.flush()

    def answer(self, status: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


http.server.ThreadingHTTPServer((arguments["host"], int(arguments["port"])), Handler).serve_forever()
