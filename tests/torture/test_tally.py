"""The table itself."""

import json

from tally import Line, as_text, write


def test_table_is_shown_and_stored(tmp_path):
    lines = [Line("kill -9 of the driver", 30, 30, 0), Line("full disk", 5, 4, 1, 1)]
    assert as_text(lines).splitlines() == [
        "what                  | injected | survived | lost | silent",
        "kill -9 of the driver |       30 |       30 |    0 |      0",
        "full disk             |        5 |        4 |    1 |      1",
    ]
    write(lines, str(tmp_path / "new" / "table.json"))
    assert json.loads((tmp_path / "new" / "table.json").read_text())[1]["lost"] == 1
