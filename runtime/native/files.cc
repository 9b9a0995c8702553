#include "files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "error.h"
#include "sha256.h"

namespace gg {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kChunk = size_t{4} << 20;  // what is hashed while it is in the cache, and then written

// An open file, closed at the end of its scope.
class Handle {
 public:
  Handle(const std::string& path, int flags) : path_(path), handle_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (handle_ < 0) wrong();
  }
  ~Handle() {
    if (handle_ >= 0) close(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  operator int() const { return handle_; }
  [[noreturn]] void wrong() const { fail(path_, ": ", std::strerror(errno)); }

  size_t size() const {
    struct stat about {};
    if (fstat(handle_, &about) != 0) wrong();
    if (!S_ISREG(about.st_mode)) fail(path_, " is not a file");
    return static_cast<size_t>(about.st_size);
  }

 private:
  const std::string& path_;
  int handle_;
};

}  // namespace

Memory::Memory(size_t bytes) : size_(bytes) {
  size_t whole = std::max(bytes, size_t{1}), room = 0;
  void* block = __builtin_add_overflow(whole, kAlignment - 1, &room) ? nullptr : std::calloc(room, 1);
  if (block == nullptr) fail("there is no memory for ", bytes, " bytes");
  void* made = block;
  std::align(kAlignment, whole, made, room);
  data_ = {static_cast<std::byte*>(made), Free{block}};
}

void Memory::Free::operator()(std::byte*) const { std::free(block); }

Mapping::Mapping(const std::string& path) {
  const Handle file(path, O_RDONLY);
  size_ = file.size();
  if (size_ == 0) return;
  void* made = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  if (made == MAP_FAILED) file.wrong();
  data_ = static_cast<const std::byte*>(made);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

Memory read_file(const std::string& path) {
  const Handle file(path, O_RDONLY);
  Memory made(file.size());
  for (size_t at = 0; at < made.size();) {
    const ssize_t count = read(file, made.data() + at, made.size() - at);
    if (count < 0 && errno != EINTR) file.wrong();
    if (count == 0) fail(path, " has become shorter while it was read");
    at += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  return made;
}

Written write_file(const std::string& path, const std::vector<std::string_view>& pieces) {
  const Handle file(path, O_WRONLY | O_CREAT | O_EXCL);
  Written about;
  Sha256 digest;
  for (std::string_view rest : pieces) {
    about.bytes += rest.size();
    while (!rest.empty()) {
      const std::string_view chunk = rest.substr(0, kChunk);
      digest.update(chunk.data(), chunk.size());
      for (size_t at = 0; at < chunk.size();) {
        const ssize_t count = write(file, chunk.data() + at, chunk.size() - at);
        if (count < 0 && errno != EINTR) file.wrong();
        at += static_cast<size_t>(std::max<ssize_t>(count, 0));
      }
      rest.remove_prefix(chunk.size());
    }
  }
  if (fsync(file) != 0) file.wrong();
  about.sha256 = digest.hex();
  return about;
}

void synchronize_folder(const std::string& path) {
  const Handle folder(path, O_RDONLY | O_DIRECTORY);
  if (fsync(folder) != 0) folder.wrong();
}

}  // namespace gg
