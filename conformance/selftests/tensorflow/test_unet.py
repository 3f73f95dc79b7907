"""The 3-D U-Net of the examples runs, and its checks of itself hold."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[3] / "docs" / "examples" / "unet3d_keras.py"


def test_the_unet_trains_the_same_with_checkpoints_and_is_saved_and_loaded():
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--epochs", "2"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest difference of a weight after training: 0.0e+00" in done.stdout
    assert done.stdout.count("the same predictions") == 2
    assert "checkpointed: encoder, decoder" in done.stdout
