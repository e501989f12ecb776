"""The server on a GPU: answers do not depend on load, and fit their schemas. Skips without a GPU, or
fails there if MILLRACE_REQUIRE_GPU=1 (driver.need_gpu)."""
import os

os.environ["MILLRACE_DEVICE"] = "cuda"  # for the server that the test starts

import driver
import serve_load_test
import serve_structure_test


class LoadOnDevice(serve_load_test.LoadTest):
    def setUp(self):
        driver.need_gpu()
        super().setUp()


class StructureOnDevice(serve_structure_test.Structure):
    @classmethod
    def setUpClass(cls):
        driver.need_gpu()
        super().setUpClass()


if __name__ == "__main__":
    driver.main()
