"""Pages that load nothing and obey no text."""

import base64
import hashlib
import re

from whichtoken.display.html import page, policy, text


def test_text_is_escaped_and_hidden_signs_are_seen():
    assert text("<b>\x1b[31m & \u202e'\"") == "&lt;b&gt;\\x1b[31m &amp; \\u202e&#x27;&quot;"


def test_only_the_script_of_the_page_is_allowed():
    script = "document.title = 'filtered';"
    made = page("<title>", "<p>body</p>", "p{color:red}", script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in made
    assert re.findall(r"<script>(.*?)</script>", made) == [script]
    assert "<title>&lt;title&gt;</title>" in made
    assert "script-src" not in policy()
