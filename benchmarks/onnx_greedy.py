"""The packaged photo captioner in onnxruntime and in PyTorch: words per second of one thread.

Both start from the same pictures in memory, one at a time, and caption them by greedy search.
"""

import tempfile

import numpy as np
import torch

import captionlab
from benchmarks import medians, record
from captionlab.decoding.generation import greedy
from captionlab.deploy import OnnxCaptioner, export_onnx
from captionlab.runs.run import Run
from captionlab.scenes import generate_scene, render

COUNT, ROUNDS = 16, 7


@torch.inference_mode()
def caption_with_torch(run: Run, pictures: list[np.ndarray]) -> list[str]:
    """Caption pictures one at a time with PyTorch."""
    captions = []
    for picture in pictures:
        memory = run.model.encode(run.processor([picture]))
        ids = greedy(run.model, memory, run.max_length, [run.vocabulary.unk])
        captions.append(run.vocabulary.decode(ids[0].tolist()))
    return captions


def main() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = captionlab.load("photos", device="cpu")
        pictures = [render(generate_scene(seed), 320) for seed in range(COUNT)]
        with tempfile.TemporaryDirectory() as folder:
            captioner = OnnxCaptioner(export_onnx(run, folder), threads=1)
        captions = captioner.caption(pictures, batch_size=1)
        assert captions == caption_with_torch(run, pictures)
        words = sum(len(caption.split()) for caption in captions)
        ours, peer = medians(
            lambda: captioner.caption(pictures, batch_size=1),
            lambda: caption_with_torch(run, pictures),
            ROUNDS,
        )
        record("onnx-greedy", words / ours, words / peer, peer / ours, "words/s, one thread")
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    main()
