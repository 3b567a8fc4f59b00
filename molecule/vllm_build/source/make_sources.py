"""Write the stand-in sources of this scenario below .cache/build-scenario, and an index that holds the installer."""

import shutil
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO / "tests"), str(REPO)]

from support.standin_sources import pack, write_source  # noqa: E402

HERE = REPO / ".cache/build-scenario"
shutil.rmtree(HERE, ignore_errors=True)
sources = HERE / "sources"
write_source(sources, "tiny-triton", "3.0")
write_source(sources, "tiny-kernels", "0.1", needs=("tiny_triton",), environment={"PREBUILD_KERNELS": "1"})
place = "/srv/build/1.0.0-tiny/01-tiny-triton/source"
vllm = write_source(
    sources, "vllm", "1.0.0+rocm1", needs=("tiny_triton", "tiny_kernels"), environment={"TRITON_KERNELS_SRC_DIR": place}
)
_archive, digest = pack(vllm)
(HERE / "vllm.sha256").write_text(digest)
(uv,) = sorted((REPO / ".cache/wheelhouse").glob("*/uv-*.whl"))[:1]
(sources / "index/uv").mkdir(parents=True)
shutil.copy(uv, sources / "index/uv")
(sources / "index/uv/index.html").write_text(f'<a href="{uv.name}">{uv.name}</a>')
