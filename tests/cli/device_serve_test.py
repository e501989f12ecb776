"""The server on a GPU: answers do not depend on load. Skips where there is none, and fails there
where MILLRACE_REQUIRE_GPU=1 (driver.need_gpu)."""
import os

os.environ["MILLRACE_DEVICE"] = "cuda"  # for the server that the test starts

import driver
import serve_load_test


class LoadOnDevice(serve_load_test.LoadTest):
    def setUp(self):
        driver.need_gpu()
        super().setUp()


if __name__ == "__main__":
    driver.main()
