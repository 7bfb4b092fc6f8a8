"""One libcudnn a process: each layout is made for real and loaded by a process of its own."""

from __future__ import annotations

import pytest
from cudnn_layouts import ROOT, Box, cudnn, library


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path)


@pytest.fixture
def whole(box):
    """A wheel of 9.19.0 with all that it needs."""
    cudnn(box.wheel)
    box.cuda_libraries()
    return box


def folders(said):
    return {file.rpartition("/")[0] for file in said["libcudnn"]}


def refused(said, *words, kind="BrokenInstall"):
    assert "error" in said, said
    name, text = said["error"]
    assert name == kind, text
    for word in words:
        assert word in text, text
    assert "\n" not in text and said["second"] == text  # a second call does not let it pass
    return text


# --- where it lies


def test_nowhere(box):
    said = box.load()
    assert not said["found"] and said["frontend"] == "1.32.0" and said["again"]
    assert "no libcudnn here" in said["text"] and not said["libcudnn"]


def test_a_wheel(whole):
    said = whole.load()
    assert (said["version"], said["backend"], said["cuda"]) == ("9.19.0", 91900, 13)
    assert (said["origin"], said["folder"]) == ("pip's wheel", str(whole.wheel))
    assert len(said["libcudnn"]) == 5 and folders(said) == {str(whole.wheel)}
    assert said["again"] and said["notes"] == []


def test_a_wheel_for_cuda_12(box):
    cudnn(box.wheel, cuda=12080)
    for name in ("cublas/lib/libcublasLt.so.12", "cuda_nvrtc/lib/libnvrtc.so.12",
                 "cuda_nvrtc/lib/libnvrtc-builtins.so.12.8"):
        library(box.site / "nvidia" / name)
    said = box.load()
    assert (said["cuda"], said["nvrtc"]) == (12, "libnvrtc.so.12")
    assert len(said["libnvrtc"]) == 2


def test_torch_goes_before_a_wheel_elsewhere(whole, tmp_path):
    other = tmp_path / "user/nvidia/cudnn/lib"
    cudnn(other, number=90800)
    whole.torch(loads=str(whole.wheel / "libcudnn.so.9"))
    whole.variables["PYTHONPATH"] = f"{tmp_path / 'user'}:{whole.site}:{ROOT}"
    said = whole.load()
    assert (said["version"], said["origin"]) == ("9.19.0", "torch's own copy")
    assert folders(said) == {str(whole.wheel)}


def test_torch_that_loads_it_late(whole):
    whole.torch()
    assert whole.load()["origin"] == "torch's own copy"


def test_torch_for_the_cpu_brings_none(whole):
    whole.torch(cuda=None, version="None")
    said = whole.load()
    assert (said["version"], said["origin"]) == ("9.19.0", "pip's wheel")


def test_conda(box, tmp_path):
    cudnn(tmp_path / "env/lib", cuda=12080)
    for name in ("libcublasLt.so.12", "libnvrtc.so.12", "libnvrtc-builtins.so.12.8"):
        library(tmp_path / "env/lib" / name)
    box.variables["CONDA_PREFIX"] = tmp_path / "env"
    said = box.load()
    assert (said["origin"], said["folder"]) == ("conda", str(tmp_path / "env/lib"))
    assert said["backend"] == 91900 and said["nvrtc"]


def test_only_in_ld_library_path(box, tmp_path):
    cudnn(tmp_path / "opt", number=92100)
    box.cuda_libraries()
    box.variables["LD_LIBRARY_PATH"] = f"{tmp_path / 'opt'}:{box.site / 'nvidia/cu13/lib'}"
    said = box.load()
    assert (said["origin"], said["version"]) == ("LD_LIBRARY_PATH", "9.21.0")
    assert said["backend"] == 92100


def test_the_system(box, tmp_path):
    """The linker knows a folder, and no variable that Python sees names it."""
    cudnn(tmp_path / "usr")
    for name in ("libcublasLt.so.13", "libnvrtc.so.13"):
        library(tmp_path / "usr" / name)
    box.variables["LD_LIBRARY_PATH"] = tmp_path / "usr"
    said = box.load(before="del os.environ['LD_LIBRARY_PATH']")
    assert (said["origin"], said["folder"]) == ("the system", str(tmp_path / "usr"))
    assert said["backend"] == 91900


def test_names_that_are_links(box, tmp_path):
    """conda and the system keep libcudnn.so.9 as a link to libcudnn.so.9.19.0."""
    folder = cudnn(tmp_path / "env/lib")
    box.cuda_libraries()
    box.variables.update(CONDA_PREFIX=tmp_path / "env",
                         LD_LIBRARY_PATH=box.site / "nvidia/cu13/lib")
    for file in list(folder.iterdir()):
        real = file.with_name(f"{file.name}.19.0")
        box.move(file, real)
        file.symlink_to(real.name)
    said = box.load()
    assert said["backend"] == 91900 and len(said["libcudnn"]) == 5


# --- what would take its place


def test_a_hijack_by_ld_library_path_is_kept_out(whole, tmp_path):
    cudnn(tmp_path / "opt", number=92100)
    whole.variables["LD_LIBRARY_PATH"] = tmp_path / "opt"
    said = whole.load()
    assert (said["version"], said["backend"]) == ("9.19.0", 91900)
    assert folders(said) == {str(whole.wheel)} and said["kept"]
    assert said["notes"] == [f"kept out: {tmp_path / 'opt'}, which LD_LIBRARY_PATH names"]


def test_a_frontend_that_was_hijacked_before(whole, tmp_path):
    cudnn(tmp_path / "opt", number=92100)
    whole.torch(loads=str(whole.wheel / "libcudnn.so.9"))
    whole.variables["LD_LIBRARY_PATH"] = tmp_path / "opt"
    refused(whole.load(before="import torch, cudnn"), str(tmp_path / "opt"), str(whole.wheel),
            "unset LD_LIBRARY_PATH")


def test_a_frontend_that_was_imported_before_and_took_the_same(whole):
    said = whole.load(before="import cudnn")
    assert said["backend"] == 91900 and folders(said) == {str(whole.wheel)}


def test_two_in_the_process(whole, tmp_path):
    cudnn(tmp_path / "opt")
    both = "; ".join(f"__import__('ctypes').CDLL('{folder}/libcudnn.so.9')"
                     for folder in (whole.wheel, tmp_path / "opt"))
    refused(whole.load(before=both), str(tmp_path / "opt"), str(whole.wheel), "two cuDNNs")


def test_torch_and_the_frontend_follow_ld_library_path_together(whole, tmp_path):
    cudnn(tmp_path / "opt")
    whole.torch(loads="libcudnn.so.9")
    whole.variables["LD_LIBRARY_PATH"] = f"{tmp_path / 'opt'}:{whole.site / 'nvidia/cu13/lib'}"
    said = whole.load()
    assert said["folder"] == str(tmp_path / "opt") and folders(said) == {said["folder"]}
    assert said["origin"] == "the process, where it was loaded before"


def test_torch_takes_the_systems_and_the_frontend_the_wheel(whole, tmp_path):
    cudnn(tmp_path / "opt")
    whole.torch(loads="libcudnn.so.9")
    whole.variables["LD_LIBRARY_PATH"] = f"{tmp_path / 'opt'}:{whole.site / 'nvidia/cu13/lib'}"
    refused(whole.load(before="del os.environ['LD_LIBRARY_PATH']"), str(tmp_path / "opt"),
            str(whole.wheel), "keep one of them")


def test_torch_refuses_the_one_that_is_loaded(whole):
    whole.torch(version="(_ for _ in ()).throw(RuntimeError('cuDNN version incompatibility'))")
    refused(whole.load(), "torch refuses libcudnn 9.19.0", "cuDNN version incompatibility")


def test_torch_uses_another_one(whole):
    whole.torch(version="90800")
    refused(whole.load(), "torch uses cuDNN 90800", "unset LD_LIBRARY_PATH")


def test_replaced_under_the_process(whole):
    """pip install in a running kernel: the old file stays mapped, its name has a new one."""
    swap = (f"__import__('ctypes').CDLL('{whole.wheel}/libcudnn.so.9'); "
            f"os.remove('{whole.wheel}/libcudnn.so.9')")
    refused(whole.load(before=swap), "replaced on disk", "restart the kernel")


# --- what is broken


def test_the_hole_of_9_20(whole):
    cudnn(whole.wheel, number=92000, graph_names="libcudnn_engines_tensor_ir")
    refused(whole.load(), "libcudnn_engines_tensor_ir.so.9", 'pip install "torch==2.11.*"')


def test_no_hole_where_the_part_is_there(whole):
    cudnn(whole.wheel, number=92100, graph_names="libcudnn_engines_tensor_ir")
    library(whole.wheel / "libcudnn_engines_tensor_ir.so.9", VERSION=92100)
    said = whole.load()
    assert said["backend"] == 92100 and len(said["libcudnn"]) == 6


@pytest.mark.parametrize("part", ["graph", "ops", "cnn", "adv"])
def test_parts_of_two_releases(whole, part):
    """The wheels for CUDA 12 and 13 write the same files: the last one wins, file by file."""
    cudnn(whole.wheel, parts={part: 90800})
    refused(whole.load(), f"cudnn{part.capitalize()}VersionCheck", "nvidia-cudnn-cu12",
            "--force-reinstall nvidia-cudnn-cu13")


def test_a_part_that_does_not_load(whole):
    (whole.wheel / "libcudnn_ops.so.9").write_bytes(b"\x7fELF cut off")
    refused(whole.load(), "libcudnn_ops.so.9 of libcudnn 9.19.0 does not load", "pip uninstall")


def test_a_library_that_does_not_load(whole):
    (whole.wheel / "libcudnn.so.9").write_text("<html>not found</html>")
    refused(whole.load(), "libcudnn.so.9 in", "does not load", "reinstall it")


def test_a_part_that_needs_a_later_one(whole):
    """libcudnn_adv.so.9 comes first by name and needs libcudnn_ops.so.9's symbol."""
    library(whole.wheel / "libcudnn_ops.so.9", VERSION=91900, source=(
        "int part_version(void) { return VERSION; } int from_ops = 1;"))
    library(whole.wheel / "libcudnn_adv.so.9", VERSION=91900, source=(
        "extern int from_ops; int* needs = &from_ops; int part_version(void) { return VERSION; }"))
    assert len(whole.load()["libcudnn"]) == 5


def test_without_cublaslt_cudnn_would_end_the_process(box):
    cudnn(box.wheel)
    refused(box.load(), "libcublasLt.so.13", "pip install nvidia-cublas and restart")


def test_without_nvrtc_it_says_what_cannot_be_done(box):
    cudnn(box.wheel)
    box.cuda_libraries(names=["cublasLt"])
    said = box.load()
    assert said["backend"] == 91900 and not said["nvrtc"]
    assert "pip install nvidia-cuda-nvrtc and restart the kernel" in said["notes"][0]


def test_nvrtc_comes_with_its_builtins(whole):
    said = whole.load()
    names = {file.rpartition("/")[2] for file in said["libnvrtc"]}
    assert names == {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0"}


# --- cudart


def test_two_cudarts_and_the_one_of_torch_is_taken(whole, tmp_path):
    for major in (12, 13):
        library(tmp_path / f"cuda/libcudart.so.{major}")
    whole.variables["LD_LIBRARY_PATH"] = tmp_path / "cuda"
    whole.torch(loads="libcudart.so.13")
    said = whole.load()
    assert said["cudart"] == said["pinned"] == "libcudart.so.13"


def test_cudart_of_cuda_12(box, tmp_path):
    cudnn(box.wheel, cuda=12080)
    library(box.site / "nvidia/cublas/lib/libcublasLt.so.12")
    for major in (12, 13):
        library(tmp_path / f"cuda/libcudart.so.{major}")
    box.variables["LD_LIBRARY_PATH"] = tmp_path / "cuda"
    box.torch(cuda="12.8", loads="libcudart.so.12")
    assert box.load()["pinned"] == "libcudart.so.12"


def test_a_choice_of_cudart_stays(whole, tmp_path):
    library(tmp_path / "cuda/libcudart.so.13")
    whole.variables.update(LD_LIBRARY_PATH=tmp_path / "cuda",
                           CUDNN_FRONTEND_CUDART_LIB_NAME="libcudart.so.13.0.96")
    assert whole.load()["pinned"] == "libcudart.so.13.0.96"


def test_no_cudart_of_its_cuda_pins_nothing(box):
    cudnn(box.wheel, cuda=99000)
    library(box.site / "nvidia/cublas/lib/libcublasLt.so.99")
    said = box.load()
    assert said["found"] and said["pinned"] is None


# --- the frontend


def test_no_frontend(whole):
    whole.without_frontend()
    refused(whole.load(), "--no-deps nvidia-cudnn-frontend==1.32.0", kind="MissingTool")


def test_another_package_called_cudnn(whole):
    whole.without_frontend()
    (whole.site / "cudnn.py").write_text("__version__ = '0'\n")
    refused(whole.load(), "not NVIDIA's frontend", "pip uninstall cudnn")


def test_a_frontend_that_does_not_import(whole):
    whole.without_frontend()
    (whole.site / "cudnn.py").write_text("raise OSError('libstdc++ is too old')\n")
    refused(whole.load(), "does not import (libstdc++ is too old)", "--force-reinstall --no-deps")
