"""scikit-learn's own checks on the count-matrix form of `TextClassifier`."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from whichtoken import TextClassifier

FOLDS = (
    "a document that is there twice moves the folds of the validation and the document frequencies; a weight does not"
)
SIGN = "feeds negative numbers to every estimator, whatever its tags say; no token occurs less than 0 times"


def expected_failures(_):
    return {
        "check_sample_weight_equivalence_on_dense_data": FOLDS,
        "check_sample_weight_equivalence_on_sparse_data": FOLDS,
        "check_class_weight_classifiers": SIGN,
        "check_decision_proba_consistency": SIGN,
    }


@pytest.mark.filterwarnings("ignore:Estimator's parameters:FutureWarning")
@pytest.mark.filterwarnings("ignore:.* fewer than . documents")  # of a class, in the tiny sets of some checks
@parametrize_with_checks([TextClassifier(C=1.0, random_state=0)], expected_failed_checks=expected_failures)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)
