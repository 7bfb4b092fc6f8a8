// What the C++ of a CPU run needs: 16-bit floats, arrays that check their index and start
// poisoned, and T.print. Included in place of TileLang's own header, which it builds on.
#pragma once
#if defined(__F16C__)
// The processor converts float16. A class that does it, which TileLang's header includes, and the
// header of all intrinsics would take three quarters of a kernel's compile time.
#define HALF_HALF_HPP
namespace half_float {
class half;
}
#endif
#include <tl_templates/cpp/common.h>

#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

namespace labkit {

// IEEE binary16, rounded to nearest even.
struct float16 {
#if defined(__F16C__) // what _cvtsh_ss and _cvtss_sh are, in GCC and in Clang
  typedef short Bits __attribute__((vector_size(16)));
  typedef float Floats __attribute__((vector_size(16)));
#endif
  static float widen(uint16_t h) {
#if defined(__F16C__)
    return Floats(__builtin_ia32_vcvtph2ps(Bits{short(h)}))[0];
#else
    half_float::half x;
    memcpy(&x, &h, 2);
    return x;
#endif
  }
  static uint16_t narrow(float f) {
#if defined(__F16C__)
    return uint16_t(Bits(__builtin_ia32_vcvtps2ph(Floats{f}, 0))[0]);
#else
    half_float::half x(f);
    uint16_t h;
    memcpy(&h, &x, 2);
    return h;
#endif
  }
};

// The upper half of a float32, rounded to nearest even.
struct bfloat16 {
  static float widen(uint16_t h) {
    uint32_t bits = uint32_t(h) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
  }
  static uint16_t narrow(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f != f)
      return uint16_t(bits >> 16) | 0x40; // stay a NaN
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

template <class Format> struct Half {
  uint16_t bits;
  Half() = default;
  Half(float f) : bits(Format::narrow(f)) {}
  operator float() const { return Format::widen(bits); }
  template <class T> Half &operator+=(T x) { return *this = Half(float(*this) + float(x)); }
};
// Between two 16-bit values each operation rounds to 16 bits, as on the GPU.
template <class F> Half<F> operator+(Half<F> a, Half<F> b) { return float(a) + float(b); }
template <class F> Half<F> operator-(Half<F> a, Half<F> b) { return float(a) - float(b); }
template <class F> Half<F> operator*(Half<F> a, Half<F> b) { return float(a) * float(b); }
template <class F> Half<F> operator/(Half<F> a, Half<F> b) { return float(a) / float(b); }

struct OutOfRange {
  const char *name;
  long long index, size;
};

// A tensor argument: `size` elements in memory that belongs to torch.
template <class T> struct Tensor {
  T *data;
  long long size;
  const char *name;
  T &operator[](long long i) const {
    if (__builtin_expect(i < 0 || i >= size, 0))
      throw OutOfRange{name, i, size};
    return data[i];
  }
};

// The tiles of the block at work, to be filled anew when the next one starts.
struct Memory {
  void *data;
  size_t bytes;
};
inline thread_local std::vector<Memory> block_memory;

// A tile, fragment or variable: filled with NaN (integers: -1), so that reading what the
// program never wrote is seen in the result.
template <class T, long long N> struct Tile {
  T *data;
  const char *name;
  bool kept;
  Tile(T *memory, const char *name, bool kept) : data(memory), name(name), kept(kept) {
    memset((void *)data, 0xff, sizeof(T) * N);
    if (kept)
      block_memory.push_back({(void *)data, sizeof(T) * N});
  }
  ~Tile() {
    if (kept)
      block_memory.pop_back();
  }
  T &operator[](long long i) const {
    if (__builtin_expect(i < 0 || i >= N, 0))
      throw OutOfRange{name, i, N};
    return data[i];
  }
  T *operator+(long long i) const { return &(*this)[i]; }
};

// Who watches a block step by step (`stepping.py`): which block, and what to call after each
// step with its number, the memory of the tiles it may have written, and the loop indices.
struct Watch {
  int64_t block[3];
  void (*step)(int64_t number, void **tiles, int64_t *bytes, int64_t count, int64_t *loops);
};
inline thread_local Watch *watch = nullptr;

// The size of the tile that begins at this address; 0 if none is known.
inline int64_t tile_bytes(void *address) {
  for (const Memory &tile : block_memory)
    if (tile.data == address)
      return int64_t(tile.bytes);
  return 0;
}

struct Seen { // the arguments of one labkit_step, sorted by kind
  void *tiles[64];
  int64_t bytes[64], loops[64];
  int64_t count = 0, depth = 0;
  void add(void *tile) {
    if (count < 64) {
      bytes[count] = tile_bytes(tile);
      tiles[count++] = tile;
    }
  }
  void add(long long index) {
    if (depth < 64)
      loops[depth++] = index;
  }
};

struct AssertFailed {
  const char *message;
};

inline void show(float x) { printf("%f", x); }
inline void show(double x) { printf("%f", x); }
template <class F> void show(Half<F> x) { printf("%f", float(x)); }
template <class T> typename std::enable_if<std::is_integral<T>::value>::type show(T x) {
  printf("%lld", (long long)x);
}

} // namespace labkit

extern "C" inline float labkit_rsqrtf(float x) { return 1.0f / sqrtf(x); }
extern "C" inline float labkit_rcpf(float x) { return 1.0f / x; }
extern "C" inline float labkit_sigmoidf(float x) { return 1.0f / (1.0f + expf(-x)); }
extern "C" inline float labkit_max_nanf(float a, float b) { return a != a || a > b ? a : b; }
extern "C" inline float labkit_min_nanf(float a, float b) { return a != a || a < b ? a : b; }

// Of two numbers the larger or smaller; a NaN gives way, as in CUDA's fmaxf and fminf.
template <class T> inline T labkit_max(T a, T b) { return a > b || b != b ? a : b; }
template <class T> inline T labkit_min(T a, T b) { return a < b || b != b ? a : b; }

extern "C" inline float labkit_float(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
extern "C" inline double labkit_double(int64_t bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

// Begins a block: registers and shared memory hold nothing that the program put there.
inline int labkit_new_block() {
  for (const labkit::Memory &tile : labkit::block_memory)
    memset(tile.data, 0xff, tile.bytes);
  return 0;
}

// Whether the block is to run: all of them, unless someone watches one.
inline bool labkit_chosen(int64_t x, int64_t y = 0, int64_t z = 0) {
  const labkit::Watch *w = labkit::watch;
  return !w || (w->block[0] == x && w->block[1] == y && w->block[2] == z);
}

// Ends a step: its number, then the tiles it may have written, then the loop indices.
template <class... Arguments> int labkit_step(int64_t number, Arguments... arguments) {
  if (labkit::watch) {
    labkit::Seen seen;
    (seen.add(arguments), ...);
    labkit::watch->step(number, seen.tiles, seen.bytes, seen.count, seen.loops);
  }
  return 0;
}

extern "C" void labkit_watch(labkit::Watch *watch) { labkit::watch = watch; }

// T.device_assert
inline int labkit_assert(bool holds, const char *message) {
  if (!holds)
    throw labkit::AssertFailed{message};
  return 0;
}

// T.print
template <class T> int debug_print_var(const char *message, T value) {
  printf("msg='%s' value=", message);
  labkit::show(value);
  printf("\n");
  return 0;
}
template <class T>
int debug_print_buffer_value(const char *message, const char *buffer, int index, T value) {
  printf("msg='%s' buffer=%s, index=%d, value=", message, buffer, index);
  labkit::show(value);
  printf("\n");
  return 0;
}
inline int debug_print_msg(const char *message) { return printf("%s\n", message); }
