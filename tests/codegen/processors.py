"""Features of processors as Linux lists them in /proc/cpuinfo, as far as they are about arithmetic; their targets."""

from __future__ import annotations

_SSE = "fpu cmov cx8 cx16 fxsr mmx syscall sse sse2 lahf_lm pni ssse3 sse4_1 sse4_2 popcnt"
_AVX = f"{_SSE} aes pclmulqdq xsave avx"
_AVX2 = f"{_AVX} avx2 fma f16c bmi1 bmi2 abm movbe rdrand"
_AVX512 = f"{_AVX2} adx avx512f avx512dq avx512cd avx512bw avx512vl"
_ICE_LAKE = f"{_AVX512} avx512ifma avx512vbmi avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg"
_SAPPHIRE_RAPIDS = f"{_ICE_LAKE} avx_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_tile amx_int8"
_AMD = "sse4a misalignsse 3dnowprefetch clzero"

PROCESSORS = {  # (machine, features, target)
    "Sapphire Rapids": ("x86_64", _SAPPHIRE_RAPIDS, "sapphirerapids"),
    "Granite Rapids": ("x86_64", f"{_SAPPHIRE_RAPIDS} amx_fp16", "sapphirerapids"),
    "Zen 5": ("x86_64", f"{_ICE_LAKE} {_AMD} avx_vnni avx512_bf16 avx512_vp2intersect movdiri", "avx512-bf16"),
    "Zen 4": ("x86_64", f"{_ICE_LAKE} {_AMD} avx512_bf16", "avx512-bf16"),
    "Cooper Lake": ("x86_64", f"{_AVX512} avx512_vnni avx512_bf16", "x86-64-v4"),
    "Ice Lake": ("x86_64", _ICE_LAKE, "x86-64-v4"),
    "Skylake-X": ("x86_64", _AVX512, "x86-64-v4"),
    "Xeon Phi": ("x86_64", f"{_AVX2} avx512f avx512pf avx512er avx512cd", "x86-64-v3"),
    "Alder Lake": ("x86_64", f"{_AVX2} gfni vaes vpclmulqdq avx_vnni", "x86-64-v3"),
    "Zen 3": ("x86_64", f"{_AVX2} {_AMD} vaes vpclmulqdq", "x86-64-v3"),
    "Haswell": ("x86_64", _AVX2, "x86-64-v3"),
    "Sandy Bridge": ("x86_64", _AVX, "x86-64"),
    "Core 2": ("x86_64", _SSE, "x86-64"),
    "Graviton 3": (
        "aarch64",
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
        "asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm svebf16 i8mm bf16 rng",
        "aarch64",
    ),
    "Graviton 2": (
        "aarch64",
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs",
        "aarch64",
    ),
    "Apple M1": (
        "aarch64",
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 "
        "asimddp sha512 asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp flagm2 frint",
        "aarch64",
    ),
}
