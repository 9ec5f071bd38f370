"""Where training ends: limiting max-margin problems, solved with a certificate."""

from whichtoken.margin.certificate import MarginCertificate
from whichtoken.margin.key_query import joint_limit, key_query_svm, prompt_svm
from whichtoken.margin.selection import selection_svm

__all__ = ["MarginCertificate", "joint_limit", "key_query_svm", "prompt_svm", "selection_svm"]
