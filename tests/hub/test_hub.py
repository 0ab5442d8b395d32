"""Weights by their URL: fetched once, compared with their hash, from a server of the test's own."""

import hashlib
import threading
import urllib.error
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

import resilin as torch
from resilin import hub, nn
from resilin.checkpoint import save_safetensors


class Quiet(SimpleHTTPRequestHandler):
    requests: ClassVar = []

    def log_message(self, *args):
        self.requests.append(self.path)

    def do_GET(self):
        if self.path == "/cut.bin":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"short")
            return
        super().do_GET()


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    Quiet.requests = []

    def handler(*args):
        return Quiet(*args, directory=str(folder))

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join(30)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub, "_chosen", {})
    return tmp_path / "home"


def test_a_state_is_fetched_once_and_loaded(server, home):
    folder, url = server
    state = nn.Linear(2, 1).state_dict()
    torch.save(state, folder / "net.pt")
    for _ in range(2):
        loaded = hub.load_state_dict_from_url(f"{url}/net.pt", map_location="cpu")
        assert torch.equal(loaded["weight"], state["weight"])
    assert Quiet.requests == ["/net.pt"]
    assert (home / "hub" / "checkpoints" / "net.pt").exists()


def test_safetensors_are_loaded_under_another_name_from_another_folder(server, tmp_path):
    folder, url = server
    save_safetensors({"a": torch.ones(2)}, str(folder / "a.safetensors"))
    from resilin.utils import model_zoo

    loaded = model_zoo.load_url(f"{url}/a.safetensors?x=1", model_dir=tmp_path / "mine", file_name="b.safetensors")
    assert loaded["a"].tolist() == [1.0, 1.0]
    assert (tmp_path / "mine" / "b.safetensors").exists()


def test_the_hash_in_a_name_is_compared(server, home):
    folder, url = server
    torch.save({"a": torch.ones(1)}, folder / "plain.pt")
    content = (folder / "plain.pt").read_bytes()
    right = f"net-{hashlib.sha256(content).hexdigest()[:8]}.pt"
    for name in (right, "net-00000000.pt"):
        (folder / name).write_bytes(content)
    assert hub.load_state_dict_from_url(f"{url}/{right}", check_hash=True)["a"].tolist() == [1.0]
    with pytest.raises(RuntimeError, match=r'invalid hash value .expected "00000000", got'):
        hub.load_state_dict_from_url(f"{url}/net-00000000.pt", check_hash=True)
    assert [path.name for path in (home / "hub" / "checkpoints").iterdir()] == [right]
    hub.load_state_dict_from_url(f"{url}/net-00000000.pt")


def test_what_does_not_come_whole_is_not_kept(server, tmp_path):
    _, url = server
    place = tmp_path / "into" / "file"
    place.parent.mkdir()
    with pytest.raises((urllib.error.ContentTooShortError, OSError)):
        hub.download_url_to_file(f"{url}/cut.bin", place)
    with pytest.raises(urllib.error.HTTPError):
        hub.download_url_to_file(f"{url}/nothing", place)
    assert list(place.parent.iterdir()) == []


def test_a_folder_is_chosen(home, tmp_path):
    assert hub.get_dir() == str(home / "hub")
    hub.set_dir(tmp_path / "other")
    assert hub.get_dir() == str(tmp_path / "other")


def test_programs_come_from_folders_only(tmp_path):
    (tmp_path / "hubconf.py").write_text('def double(x, by=2):\n    """Doubles."""\n    return x * by\n')
    folder = str(tmp_path)
    assert hub.load(folder, "double", 3, by=3, source="local", trust_repo=True) == 9
    assert hub.list(folder, source="local") == ["double"]
    assert hub.help(folder, "double", source="local") == "Doubles."
    with pytest.raises(RuntimeError, match="Cannot find callable triple"):
        hub.load(folder, "triple", source="local")
    with pytest.raises(NotImplementedError, match='source="local"'):
        hub.load("owner/repository", "net")
