"""The table of the zoo: what became of each file, and why some have no learned mask."""

from benchmarks import zoo


def test_every_file_has_its_outcome() -> None:
    instead = "the method differences is used instead of mask: no gradient rule for LSTM"
    learned = {"masked_by": "mask", "check_error": 1.4e-4}
    records = [
        {"name": zoo.OPTIMISED[0], "files": {"torchscript": learned, "torchscript, all": {"sentence": "refused so."}}},
        {"name": "timm/other", "files": {
            "torchscript": {"masked_by": "differences", "instead": instead, "check_error": None},
            "dynamo": {"not_exported": "TypeError: no"},
        }},
    ]  # fmt: skip
    text = zoo.zoo_table({"packages": {"torch": "2.9", "timm": "1.0"}, "networks": records})
    assert (
        "2 networks with random weights (torch 2.9, timm 1.0), 4 exports and optimised files: 1 mask, 1 refused, "
        in text
    )
    assert "1 differences, 1 not exported." in text
    for row in (
        "| mask, 0.01 % |  |", "| / | / | refused / |", "| torchscript, all | refused so. |",
        "| timm/other | differences | not exported |", "| timm/other | torchscript | no gradient rule for LSTM |",
        "| timm/other | dynamo | TypeError: no |",
    ):  # fmt: skip
        assert row in text, row
