"""millrace bench serve: this program's server under load, and another server."""
import http.server
import json
import socket
import threading

import driver
from serving import Server

SMALL = ("--input", 12, "--output", 6, "--threads", 2)


class Own(driver.CliTest):
    def rows(self, *arguments):
        got = self.ok_json("bench", "serve", *SMALL, *arguments)
        self.assertEqual((got["bench"], got["input"], got["output"]), ("serve", 12, 6))
        return got, got["rows"]

    def check(self, row, requests):
        self.assertEqual((row["requests"], row["failed"]), (requests, 0), row)
        self.assertEqual(row["input_tokens"], 12 * requests)
        self.assertEqual(row["output_tokens"], 6 * requests)
        self.assertAlmostEqual(row["output_tok_s"] * row["seconds"], 6 * requests, places=3)
        self.assertAlmostEqual(row["total_tok_s"] * row["seconds"], 18 * requests, places=3)
        for name in ("first_token_ms", "per_token_ms", "gap_ms"):
            figures = row[name]
            self.assertGreater(figures["p99"], 0, name)
            self.assertLessEqual(figures["p50"], figures["p95"])
            self.assertLessEqual(figures["p95"], figures["p99"])

    def test_levels_add_up(self):
        got, rows = self.rows("--concurrency", "1,4")
        self.assertEqual([row["clients"] for row in rows], [1, 4])
        self.assertEqual((got["sequences"], got["ctx"]), (4, 18))
        for row in rows:
            self.check(row, 16)
            # Each prompt gives a first token; no pass has more rows than there are texts.
            self.assertGreaterEqual(row["server"]["passes"], 6 * 16 / row["clients"])
            self.assertLessEqual(row["server"]["rows_per_pass"], row["clients"])
            self.assertGreaterEqual(row["server"]["queue_ms"], 0)
            self.assertEqual(row["server"]["found_percent"], 0)
        self.assertGreater(rows[1]["server"]["rows_per_pass"], 1)

    def test_a_shared_prefix_is_found(self):
        shared = self.ok_json("bench", "serve", "--concurrency", 1, "--input", 100, "--output", 2,
                              "--shared-prefix", 96, "--threads", 2)
        self.assertGreater(shared["rows"][0]["server"]["found_percent"], 50)

    def test_arrivals_beside_idle_connections(self):
        got, rows = self.rows("--rate", 100, "--requests", 20, "--idle", 20)
        self.assertEqual(len(rows), 1)
        self.assertEqual((rows[0]["rate"], rows[0]["idle"], got["idle"]), (100, 20, 20))
        self.check(rows[0], 20)
        _, rows = self.rows("--rate", 200, "--requests", 3, "--concurrency", 2)
        self.assertEqual([("rate" in row, row["requests"]) for row in rows], [(False, 3), (True, 3)])

    def test_the_table(self):
        made = self.ok("bench", "serve", *SMALL, "--concurrency", 2, "--requests", 3, "--idle", 2)
        lines = made.out.splitlines()
        self.assertIn("12 tokens in, 6 tokens out", lines[0])
        self.assertEqual(lines[3].split()[:3], ["2", "3", "0"])
        self.assertEqual(len(lines[3]), len(lines[2]))
        self.assertIn("2 idle connections, of which 2 stand", lines[4])
        self.assertEqual(made.err, "")

    def test_a_model_of_random_weights(self):
        got = self.ok_json("bench", "serve", "random:stories-42m:q8_0", "--concurrency", 2, *SMALL)
        self.check(got["rows"][0], 16)
        self.assertEqual(got["model"], "random:stories-42m:q8_0")

    def test_errors(self):
        self.fails(2, "bench", "serve", "--input", 4, "--shared-prefix", 4, says="--shared-prefix")
        self.fails(2, "bench", "serve", "--api-key", "x", says=("--api-key", "--url"))
        self.fails(2, "bench", "serve", "--url", "https://a", says="HTTPS")
        self.fails(2, "bench", "serve", "x.gguf", "--url", "http://127.0.0.1:1", says="MODEL")
        made = self.fails(1, "bench", "serve", "--input", 12, "--ctx", 8,
                          says=("every request failed", "context"))
        self.assertNotIn("--prompt-text", made.err)  # this server accepts token ids


class Others(driver.CliTest):
    def test_a_server_of_this_program(self):
        server = Server("--sequences", 4)
        try:
            url = f"http://{server.host}:{server.port}"
            got = self.ok_json("bench", "serve", "--url", url, "--concurrency", "1,6",
                               "--input", 12, "--output", 6, "--idle", 5)
            self.assertEqual((got["url"], got["model"]), (url, "storyteller"))
            for row in got["rows"]:
                self.assertEqual((row["requests"], row["failed"]), (18 if row["clients"] == 6 else 16,
                                                                    0))
                self.assertEqual(row["output_tokens"], 6 * row["requests"])
                self.assertEqual(row["idle"], 5)
                self.assertNotIn("server", row)
            words = self.ok_json("bench", "serve", "--url", url + "/v1", "--prompt-text",
                                 "--concurrency", 2, "--input", 9, "--output", 3)["rows"][0]
            self.assertEqual((words["failed"], words["output_tokens"]), (0, 48))
            self.assertGreaterEqual(words["input_tokens"], 16 * 9)
            # Longer than the context: every request is refused.
            made = self.fails(1, "bench", "serve", "--url", url, "--input", 600,
                              says=("every request failed", "context"))
            self.assertNotIn("--prompt-text", made.err)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_keys(self):
        keys = self.folder / "keys"
        keys.write_text("correct-horse\n")
        server = Server("--api-key-file", keys)
        try:
            url = f"http://{server.host}:{server.port}"
            self.fails(1, "bench", "serve", "--url", url, says=("401", "--api-key"))
            got = self.ok_json("bench", "serve", "--url", url, "--api-key", "correct-horse",
                               "--concurrency", 1, "--requests", 2, "--input", 4, "--output", 2)
            self.assertEqual(got["rows"][0]["failed"], 0)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_nothing_listens(self):
        with socket.socket() as taken:  # bound, but not listening
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            self.fails(1, "bench", "serve", "--url", f"http://127.0.0.1:{port}",
                       says=("cannot connect", str(port)))

    def test_failures_are_counted(self):
        """Another kind of server: Python's spaces, closing connections, and every third request
        fails."""
        class Handler(http.server.BaseHTTPRequestHandler):
            asked = 0
            words = False  # token ids are refused

            def do_GET(self):
                body = json.dumps({"data": [{"id": "other"}]}).encode()
                found = self.path == "/v1/models"
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body) if found else 0))
                self.end_headers()
                self.wfile.write(body if found else b"")

            def do_POST(self):
                Handler.asked += 1
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if asked["prompt"] and isinstance(asked["prompt"][0], int) and Handler.words:
                    return self.send_error(422)
                if Handler.asked % 3 == 0:
                    return self.send_error(503)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for _ in range(asked["max_tokens"]):
                    event = {"choices": [{"text": "x", "finish_reason": None}]}
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ask = ("bench", "serve", "--url", f"http://127.0.0.1:{server.server_address[1]}",
                   "--concurrency", 2, "--requests", 12, "--input", 4, "--output", 3)
            got = self.ok_json(*ask)
            Handler.words = True
            self.fails(1, *ask, says=("422", "--vocab", "--prompt-text"))
            self.ok_json(*ask, "--prompt-text")
            server.shutdown()
        row = got["rows"][0]
        self.assertEqual((got["model"], row["requests"], row["failed"]), ("other", 12, 4))
        self.assertIn("503", row["first_failure"])
        self.assertEqual((row["output_tokens"], row["input_tokens"]), (8 * 3, 8 * 4))


if __name__ == "__main__":
    driver.main()
