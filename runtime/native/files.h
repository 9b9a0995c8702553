// Memory and files: aligned memory, files mapped or read whole, files that are on disk once they are written.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gg {

// Zeroed memory that begins on a 64-byte boundary. Pages that nobody writes to take none of the machine's.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size_}; }

 private:
  struct Free {
    void* block;  // of which the memory is the aligned part
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// A file's bytes, mapped for reading for as long as this lives.
class Mapping {
 public:
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A file's bytes in memory of our own: nobody can change them once they have been checked.
Memory read_file(const std::string& path);

// Writes a file that does not exist yet, and synchronizes it with the disk; its size and SHA-256.
struct Written {
  size_t bytes = 0;
  std::string sha256;
};
Written write_file(const std::string& path, const std::vector<std::string_view>& pieces);

void synchronize_folder(const std::string& path);

}  // namespace gg
