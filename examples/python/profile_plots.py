"""Where the time of a generation goes, as a picture: the share of each stage, and how near it comes
to what the machine can do. Without matplotlib the page of `Profile.save_html` is written instead.

    python profile_plots.py --max-tokens 64 --out profile.png
"""
import argparse
import pathlib

import millrace as mr


def draw(profile, path, pyplot):
    phases = sorted({record["phase"] for record in profile.records()})
    figure, axes = pyplot.subplots(2, len(phases), figsize=(6 * len(phases), 7), squeeze=False)
    for column, phase in enumerate(phases):
        stages = sorted((record for record in profile.records() if record["phase"] == phase),
                        key=lambda record: record["seconds"])
        names = [record["stage"] for record in stages]
        axes[0][column].barh(names, [100 * record["share"] for record in stages])
        axes[0][column].set(title=phase, xlabel="% of the time")
        axes[1][column].barh(names, [100 * record["of_ceiling"] for record in stages])
        axes[1][column].set(xlabel="% of the machine's ceiling (memory or arithmetic)")
    figure.suptitle(profile.summary, fontsize=8, wrap=True)
    figure.tight_layout()
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a GGUF file or a folder; else the storyteller")
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("profile.png"))
    given = parser.parse_args()

    with mr.Model(given.model) as model:
        profile = model.profile(given.prompt, max_tokens=given.max_tokens, seed=1)
    print(profile.table())
    try:
        import matplotlib
        matplotlib.use("Agg")  # draws into files: needs no screen
        from matplotlib import pyplot
    except ImportError:
        path = given.out.with_suffix(".html")
        profile.save_html(path)
    else:
        path = given.out
        draw(profile, path, pyplot)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
