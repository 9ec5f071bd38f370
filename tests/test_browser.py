"""The watcher of pages notices what it is there for."""

import pytest

pytestmark = pytest.mark.browser

SOUND = (
    '<!doctype html><html lang="en"><head><title>page</title></head><body><main><h1>Page</h1>{}</main></body></html>'
)


@pytest.fixture
def opened(visit, tmp_path):
    def of(body, **options):
        (tmp_path / "page.html").write_text(SOUND.format(body))
        return visit(tmp_path / "page.html", **options)

    return of


def test_sound_page_passes(opened):
    made = opened('<a href="#one">one</a> <button>two</button>', width=360, theme="dark")
    assert made.violations() == []
    assert made.overflow() == 0
    assert made.tab_stops() == ["a one", "button two"]


def test_hindrances_are_found(opened):
    assert [line.split(":")[0] for line in opened('<p style="color:#ddd">pale</p>').violations()] == ["color-contrast"]


def test_width_is_measured(opened):
    assert opened('<div style="width:500px">wide</div>', width=360).overflow() > 100


def test_errors_and_requests_that_leave_are_seen(opened):
    made = opened('<script>null.x</script><img alt="" src="http://127.0.0.1:9/spy.png">')
    assert made.left() == ["http://127.0.0.1:9/spy.png"]
    assert any("null" in text for text in made.complaints)
    made.complaints.clear()  # as expected: the teardown need not say it again
    made.requests.clear()
