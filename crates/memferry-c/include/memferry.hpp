// memferry for C++20: owners of the handles of memferry.h, spans, and co_await. Header only.
//
// Functions throw memferry::Error. Destructors never throw; one that cannot free (in use elsewhere) ends the program with
// the message, since memory of the caller may still be read. The guide is docs/guides/c.md.
#ifndef MEMFERRY_HPP
#define MEMFERRY_HPP

#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "memferry.h"

namespace memferry {

/// A failed call: its status and message.
class Error : public std::runtime_error {
public:
    explicit Error(mf_status status, const char *message = mf_error_message())
        : std::runtime_error(message), status_(status) {}
    mf_status status() const noexcept { return status_; }

private:
    mf_status status_;
};

inline void check(mf_status status) {
    if (status != MF_OK) throw Error(status);
}

/// The owner of a handle: moved, never copied.
template <class Id, mf_status (*free_handle)(Id)>
class Handle {
public:
    Handle() noexcept = default;
    explicit Handle(Id id) noexcept : id_(id) {}
    Handle(Handle &&other) noexcept : id_(other.release()) {}
    Handle &operator=(Handle &&other) noexcept {
        Handle moved(std::move(other));
        std::swap(id_, moved.id_);
        return *this;
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() {
        if (id_.id != 0 && free_handle(id_) != MF_OK) {
            std::fprintf(stderr, "memferry: %s\n", mf_error_message());
            std::terminate();
        }
    }
    Id get() const noexcept { return id_; }
    /// Gives up ownership.
    Id release() noexcept { return std::exchange(id_, Id{0}); }
    explicit operator bool() const noexcept { return id_.id != 0; }

protected:
    Id id_{0};
};

/// A machine: nodes and links.
class Machine : public Handle<mf_machine, mf_machine_free> {
public:
    using Handle::Handle;
    static Machine discover() {
        mf_machine machine;
        check(mf_machine_discover(&machine));
        return Machine(machine);
    }
    static Machine from_profile(const std::string &name) {
        mf_machine machine;
        check(mf_machine_from_profile(name.c_str(), &machine));
        return Machine(machine);
    }
    std::vector<mf_node_info> nodes() const {
        std::size_t count = 0;
        check(mf_machine_nodes(id_, nullptr, 0, &count));
        std::vector<mf_node_info> nodes(count);
        check(mf_machine_nodes(id_, nodes.data(), count, &count));
        return nodes;
    }
    std::vector<mf_accelerator> accelerators() const {
        std::size_t count = 0;
        check(mf_machine_accelerators(id_, nullptr, 0, &count));
        std::vector<mf_accelerator> accelerators(count);
        check(mf_machine_accelerators(id_, accelerators.data(), count, &count));
        return accelerators;
    }
    std::string name() const {
        std::size_t length = 0;
        check(mf_machine_name(id_, nullptr, 0, &length));
        std::string name(length, '\0');
        check(mf_machine_name(id_, name.data(), length + 1, nullptr));
        return name;
    }
    mf_link link(mf_node cpus, mf_node memory) const {
        mf_link link;
        check(mf_machine_link(id_, cpus, memory, &link));
        return link;
    }
    /// MF_NO_NODE if there is none.
    mf_node nearest_faster(mf_node node) const {
        mf_node faster;
        check(mf_machine_nearest_faster(id_, node, &faster));
        return faster;
    }
};

/// Emulated DSA devices in this process.
class Emulator : public Handle<mf_emulator, mf_emulator_free> {
public:
    explicit Emulator(const mf_emulator_options &options = {}) {
        check(mf_emulator_start(&options, &id_));
    }
};

/// An operation in flight. The destructor waits, because the buffers are in use until the completion.
class Transfer {
public:
    explicit Transfer(mf_transfer id) noexcept : id_(id) {}
    Transfer(Transfer &&other) noexcept : id_(std::exchange(other.id_, mf_transfer{0})) {}
    Transfer &operator=(Transfer &&other) noexcept {
        Transfer moved(std::move(other));
        std::swap(id_, moved.id_);
        return *this;
    }
    Transfer(const Transfer &) = delete;
    Transfer &operator=(const Transfer &) = delete;
    ~Transfer() {
        if (id_.id == 0) return;
        mf_transfer_wait(id_, nullptr);
        if (mf_transfer_free(id_) != MF_OK) {
            std::fprintf(stderr, "memferry: %s\n", mf_error_message());
            std::terminate();
        }
    }
    bool is_done() const { return mf_transfer_poll(id_, nullptr) != MF_PENDING; }
    mf_result wait() const {
        mf_result result;
        check(mf_transfer_wait(id_, &result));
        return result;
    }

private:
    mf_transfer id_;
};

/// Resumes a coroutine at the completion of an operation, on the thread that completes it.
///
/// The coroutine and its buffers must live until then: do not destroy a coroutine that awaits.
class [[nodiscard]] Awaited {
public:
    Awaited(mf_mover mover, const mf_operation &operation) noexcept : mover_(mover), operation_(operation) {}
    Awaited(const Awaited &) = delete;
    Awaited &operator=(const Awaited &) = delete;
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> coroutine) {
        coroutine_ = coroutine;
        operation_.callback = [](void *context, const mf_result *result) {
            auto *self = static_cast<Awaited *>(context);
            self->result_ = *result;
            if (result->status != MF_OK) self->message_ = mf_error_message();
            // The later of the two resumes: the completion may come within mf_mover_submit.
            if (self->is_half_done_.exchange(true)) self->coroutine_.resume();
        };
        operation_.context = this;
        check(mf_mover_submit(mover_, &operation_, nullptr));
        return !is_half_done_.exchange(true);
    }
    mf_result await_resume() const {
        if (result_.status != MF_OK) throw Error(result_.status, message_.c_str());
        return result_;
    }

private:
    mf_mover mover_;
    mf_operation operation_;
    mf_result result_{};
    std::string message_;
    std::coroutine_handle<> coroutine_;
    std::atomic<bool> is_half_done_{false};
};

/// Engines that execute operations.
class Mover : public Handle<mf_mover, mf_mover_free> {
public:
    explicit Mover(const Machine &machine, const mf_mover_options &options = {}) {
        check(mf_mover_create(machine.get(), &options, &id_));
    }
    /// Starts an operation; its buffers stay untouched until the completion.
    Transfer submit(const mf_operation &operation) const {
        mf_transfer transfer;
        check(mf_mover_submit(id_, &operation, &transfer));
        return Transfer(transfer);
    }
    /// Starts operations together: see mf_mover_submit_batch.
    std::vector<Transfer> submit(std::span<const mf_operation> operations) const {
        std::vector<mf_transfer> ids(operations.size());
        std::vector<Transfer> transfers;
        transfers.reserve(ids.size());
        check(mf_mover_submit_batch(id_, operations.data(), operations.size(), ids.data()));
        for (mf_transfer id : ids) transfers.emplace_back(id);
        return transfers;
    }
    mf_result run(const mf_operation &operation) const {
        mf_result result;
        check(mf_mover_run(id_, &operation, &result));
        return result;
    }
    /// For co_await.
    Awaited async(const mf_operation &operation) const noexcept { return Awaited(id_, operation); }
    void drain() const { check(mf_mover_drain(id_)); }
    mf_mover_stats stats() const {
        mf_mover_stats stats;
        check(mf_mover_get_stats(id_, &stats));
        return stats;
    }
};

/// A copy, from and to spans of one size.
template <class T>
mf_operation copy(std::span<const T> source, std::span<T> target) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (source.size() != target.size()) throw std::invalid_argument("memferry::copy: the sizes differ");
    mf_operation operation{};
    operation.opcode = MF_COPY;
    operation.source = source.data();
    operation.target = target.data();
    operation.size = source.size_bytes();
    return operation;
}

/// A held range of a cache: CacheData in the thesis. Copies share it.
class Entry : public Handle<mf_entry, mf_entry_free> {
public:
    using Handle::Handle;
    Entry(Entry &&) noexcept = default;
    Entry &operator=(Entry &&) noexcept = default;
    Entry(const Entry &other) : Handle() { check(mf_entry_clone(other.id_, &id_)); }
    Entry &operator=(const Entry &other) { return *this = Entry(other); }
    /// MF_PENDING only with MF_WAIT_WEAK.
    mf_status wait_on_completion() const {
        mf_status status = mf_entry_wait_on_completion(id_);
        if (status != MF_PENDING) check(status);
        return status;
    }
    mf_location location() const {
        mf_location location;
        check(mf_entry_get_data_location(id_, &location));
        return location;
    }
    /// The bytes, in the fastest memory that has them now.
    template <class T>
    std::span<const T> data() const {
        mf_location found = location();
        return {static_cast<const T *>(found.data), found.size / sizeof(T)};
    }
};

/// Registered bytes of the caller.
class Region : public Handle<mf_region, mf_region_free> {
public:
    using Handle::Handle;
};

/// A borrowed hit; stays on its thread.
class View {
public:
    View(mf_cache cache, mf_region region, std::size_t offset, std::size_t size, const mf_access *access) {
        check(mf_cache_view(cache, region, offset, size, access, &view_));
    }
    View(const View &) = delete;
    View &operator=(const View &) = delete;
    ~View() {
        if (mf_view_release(&view_) != MF_OK) {
            std::fprintf(stderr, "memferry: %s\n", mf_error_message());
            std::terminate();
        }
    }
    void wait() { check(mf_view_wait(&view_, nullptr)); }
    template <class T>
    std::span<const T> data() const noexcept {
        return {static_cast<const T *>(view_.data), view_.size / sizeof(T)};
    }

private:
    mf_view view_;
};

/// The cache of the thesis.
class Cache : public Handle<mf_cache, mf_cache_free> {
public:
    Cache(const Mover &mover, std::span<const mf_budget> budgets, mf_cache_options options = {}) {
        options.budgets = budgets.data();
        options.budgets_count = budgets.size();
        check(mf_cache_init(mover.get(), &options, &id_));
    }
    /// Starts a copy if there is none. An empty entry only with MF_ACCESS_WEAK.
    template <class T>
    Entry access(std::span<const T> data, const mf_access &access = {}) const {
        mf_entry entry;
        check(mf_cache_access(id_, data.data(), data.size_bytes(), &access, &entry));
        return Entry(entry);
    }
    template <class T>
    Region register_chunked(std::span<const T> data, std::size_t chunk_bytes, mf_node node = MF_NO_NODE) const {
        mf_region region;
        check(mf_cache_register(id_, data.data(), data.size_bytes(), chunk_bytes, node, &region));
        return Region(region);
    }
    View view(const Region &region, std::size_t offset, std::size_t size, const mf_access *access = nullptr) const {
        return View(id_, region.get(), offset, size, access);
    }
    template <class T>
    void invalidate(std::span<const T> data) const {
        check(mf_cache_invalidate(id_, data.data(), data.size_bytes()));
    }
    void flush() const { check(mf_cache_flush(id_)); }
    void clear() const { check(mf_cache_clear(id_)); }
    mf_cache_stats stats() const {
        mf_cache_stats stats;
        check(mf_cache_get_stats(id_, &stats));
        return stats;
    }
};

}  // namespace memferry

#endif
