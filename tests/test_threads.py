"""Limits on threads are counted: in real threads and real forks, each in a process of its own."""

import os
import subprocess
import sys

import pytest

COMMON = """
import os, sys, threading
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2"))
import numpy, scipy.linalg, sklearn.utils._openmp_helpers
from threadpoolctl import threadpool_info
from whichtoken.threads import one_thread

def sizes():
    return [(x["user_api"], x["num_threads"]) for x in threadpool_info()]

def expect(value):
    assert sizes() and {count for _, count in sizes()} == {value}, (value, sizes())
"""


def run(code: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", COMMON + code], capture_output=True, text=True, check=False, timeout=120
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_threads_that_overlap_leave_the_setting_as_it_was():
    run("""
first, second = threading.Event(), threading.Event()
seen = []

def early():
    with one_thread():
        first.set()
        assert second.wait(60)

def late():
    assert first.wait(60)
    with one_thread():
        second.set()
        thread.join(60)       # the one that came first has left: the limit still holds here
        seen.append(sizes())

thread = threading.Thread(target=early)
other = threading.Thread(target=late)
expect(2)
thread.start(), other.start(), other.join(60)
assert {count for _, count in seen[0]} == {1}, seen
expect(2)
with one_thread():
    with one_thread():
        expect(1)
    expect(1)
expect(2)
try:
    with one_thread():
        raise KeyError
except KeyError:
    expect(2)
""")


@pytest.mark.process
def test_solves_in_many_threads_leave_the_setting_as_it_was():
    run("""
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from whichtoken.margin import prompt_svm

tokens = np.random.default_rng(0).standard_normal((6, 4, 5))
selected = (tokens @ np.ones(5)).argmax(axis=1)
before = sizes()
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: prompt_svm(tokens, selected, 1.5), range(60)))
assert sizes() == before, (before, sizes())
""")


@pytest.mark.process
def test_a_library_loaded_inside_is_limited_by_the_next_call():
    run("""
with one_thread():
    import torch
    with one_thread():
        expect(1)
expect(2)
""")


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_inside_the_limit_of_another_thread_is_free_of_it():
    run("""
inside, done = threading.Event(), threading.Event()

def other():
    with one_thread():
        inside.set()
        done.wait(60)

def child_ends_well(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def free():
    expect(2)
    with one_thread():
        expect(1)
    expect(2)

thread = threading.Thread(target=other)
thread.start()
inside.wait(60)
child_ends_well(free)
done.set(), thread.join(60)
expect(2)
with one_thread():
    child_ends_well(lambda: expect(1))
expect(2)
""")


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fits_after_a_fork_work_or_say_why_not():
    """GNU OpenMP ends a forked child that goes on with its parent's threads; a sentence comes first."""
    run("""
import numpy as np
from numba import njit, prange, threading_layer
from whichtoken import GroupClassifier
from whichtoken.errors import UsageError
from whichtoken.margin import prompt_svm
from whichtoken.theory.trained_embeddings import start_cls, train_cls
from whichtoken.theory.trained_embeddings import TrainingPlan

@njit(parallel=True)
def total(values):
    result = 0.0
    for k in prange(len(values)):
        result += values[k]
    return result

rng = np.random.default_rng(0)
table = rng.standard_normal((60, 6))

def fits():
    prompt_svm(rng.standard_normal((4, 3, 5)), [0] * 4)
    GroupClassifier(groups=np.repeat(np.arange(3), 2)).fit(table, table[:, 0] > 0)

total(np.ones(1000)), fits()
if threading_layer() != "omp":
    sys.exit(0)  # the others survive a fork
pid = os.fork()
if pid == 0:
    fits()
    try:
        train_cls(start_cls(8, 4, rng), np.ones((2, 8), int), np.array([-1, 1]), TrainingPlan(epochs=1), rng)
    except UsageError as error:
        os._exit(0 if "was forked" in str(error) else 2)
    os._exit(1)
status = os.waitpid(pid, 0)[1]
assert status == 0, status
""")
