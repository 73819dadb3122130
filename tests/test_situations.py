"""Situations that users of such tools report: what each gives here."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import captionlab
from captionlab.cli import app


def call(*words):
    """The result of a command."""
    return CliRunner().invoke(app, [str(word) for word in words])


def success(*words):
    """What a command prints that must succeed."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.output


def mistake(*words):
    """What a command prints that must fail with lines of ours, the last of them."""
    result = call(*words)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.slow
class TestOneDecoder:
    def test_the_page_reads_pictures_as_the_command_line_does(self, tmp_path, capfd):
        pytest.importorskip("gradio")
        from gradio_client import Client, handle_file

        from captionlab.deploy import build_app

        run = captionlab.load("scenes")
        deep = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint16) * 500
        Image.fromarray(deep).save(tmp_path / "16 bits.png")
        clear = np.random.default_rng(0).integers(0, 255, (64, 64, 4), np.uint8)
        clear[..., 3] = np.arange(64) * 4
        Image.fromarray(clear).save(tmp_path / "transparent.png")
        (tmp_path / "broken.png").write_bytes(b"no picture")
        page = build_app(run)
        _, url, _ = page.launch(prevent_thread_lock=True, quiet=True)
        try:
            client = Client(url, verbose=False)
            for name in ("16 bits.png", "transparent.png"):
                shown = client.predict(handle_file(tmp_path / name), 3, api_name="/update")
                captions = [caption.text for caption in run.generate(tmp_path / name, beam=3,
                                                                     num_captions=3)]
                assert [row[0] for row in shown[0]["data"]] == captions
            with pytest.raises(Exception, match="cannot read the file as a picture"):
                client.predict(handle_file(tmp_path / "broken.png"), 3, api_name="/update")
        finally:
            page.close()
        assert "Traceback" not in capfd.readouterr().err
