"""A storyteller of your own: the bundled one writes stories, a new model is trained on them and tells one.

The defaults take some seconds on a CPU and teach it little. A good one wants more of everything:

    python train_storyteller.py --stories 20000 --dim 256 --layers 8 --steps 20000 --batch 64 \\
        --seq 512
"""
import argparse
import pathlib

import millrace as mr


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("my-storyteller"))
    parser.add_argument("--stories", type=int, default=100)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    given = parser.parse_args()

    run_folder = given.folder / "run"
    if run_folder.exists():  # resumes a run that Ctrl-C has stopped, bit for bit
        run = mr.train(resume=run_folder, steps=given.steps, progress=True)
    else:
        given.folder.mkdir(parents=True, exist_ok=True)
        texts = given.folder / "stories.txt"
        with mr.Model("storyteller") as teller:
            stories = teller.generate_batch(["Once upon a time"] * given.stories, max_tokens=300,
                                            seed=1, progress=True)
        texts.write_text("<|endoftext|>".join("Once upon a time" + story for story in stories))
        data = mr.data.pack(data=texts, tokenizer="storyteller", out=given.folder / "data",
                            force=True, progress=True)
        print(f"{data.train_tokens} tokens to train on")
        run = mr.train(model="llama", dim=given.dim, layers=given.layers, heads=given.heads,
                       data=data.path, out=run_folder, steps=given.steps, batch=given.batch,
                       seq=given.seq, lr=given.lr, eval_every=max(given.steps // 4, 1),
                       sample_tokens=0, progress=True)

    loss = run.metrics.column("loss")
    print(f"loss {loss[0]:.2f} -> {loss[-1]:.2f} in {len(loss)} steps, validation "
          f"{run.result['val_loss']:.2f}; curves: {run.report}")
    with run.model() as model:
        print("Once upon a time" + model.generate("Once upon a time", max_tokens=60, seed=1))


if __name__ == "__main__":
    main()
