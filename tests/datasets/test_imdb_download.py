"""The download keeps a file only if it is the right one."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from whichtoken.datasets.corpora import download_imdb
from whichtoken.errors import UsageError

CONTENT = bytes(range(256)) * 3000


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/short.tar.gz":
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1000])
            self.close_connection = True
        elif self.path == "/cut.tar.gz":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc")
            self.close_connection = True
        elif self.path == "/garbage.tar.gz":
            self.wfile.write(b"garbage\r\n\r\n")
            self.close_connection = True
        else:
            super().do_GET()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "reviews.tar.gz").write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "site")) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_the_right_file_is_kept_and_not_fetched_again(server, tmp_path, kind):
    folder, checksum = tmp_path / "data", hashlib.new(kind, CONTENT).hexdigest()
    path = download_imdb(folder, url=f"{server}/reviews.tar.gz", checksum=checksum)
    assert path.read_bytes() == CONTENT
    assert [file.name for file in folder.iterdir()] == ["reviews.tar.gz"]
    (tmp_path / "site" / "reviews.tar.gz").unlink()
    assert download_imdb(folder, url=f"{server}/reviews.tar.gz", checksum=checksum) == path


def test_a_damaged_file_is_replaced(server, tmp_path):
    path = tmp_path / "reviews.tar.gz"
    path.write_bytes(b"half")
    download_imdb(tmp_path, url=f"{server}/reviews.tar.gz", checksum=hashlib.md5(CONTENT).hexdigest())
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("page", "checksum", "sentence"),
    [
        ("reviews.tar.gz", "0" * 64, "arrived with checksum"),
        ("nothing.tar.gz", "0" * 32, "cannot be reached"),
        ("short.tar.gz", "0" * 32, "ended after 1000 of 768000 bytes"),
        ("cut.tar.gz", "0" * 32, r"cannot be fetched to .* \(IncompleteRead"),
        ("garbage.tar.gz", "0" * 32, r"cannot be fetched to .* \(garbage"),
    ],
)
def test_anything_else_leaves_nothing_behind(server, tmp_path, page, checksum, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        download_imdb(tmp_path / "data", url=f"{server}/{page}", checksum=checksum)
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "data").iterdir())


def test_a_strange_checksum_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="must have 32"):
        download_imdb(tmp_path, url=f"{server}/reviews.tar.gz", checksum="abc")
