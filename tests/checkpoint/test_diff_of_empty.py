"""What `resilin checkpoint diff` says of a state in which nothing is."""

from resilin import checkpoint
from resilin.launcher import main


def test_a_state_that_is_empty_has_no_name_that_differs(tmp_path, capsys):
    checkpoint.save(tmp_path / "empty", {})
    checkpoint.save(tmp_path / "run", {"n": 1})
    for a, b, side in (("empty", "run", "B"), ("run", "empty", "A")):
        assert main.main(["checkpoint", "diff", str(tmp_path / a), str(tmp_path / b)]) == 1
        assert capsys.readouterr().out.splitlines()[2:] == [f"  n: only in {side}: 1", "1 differences"]
    checkpoint.save(tmp_path / "unnamed", {"": 1})
    assert main.main(["checkpoint", "diff", str(tmp_path / "empty"), str(tmp_path / "unnamed")]) == 1
    assert main.main(["checkpoint", "diff", str(tmp_path / "empty"), str(tmp_path / "empty")]) == 0
