// co_await: operations in the order of the code, without a waiting thread.
#include <atomic>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <memferry.hpp>
#include <span>
#include <vector>

namespace {

/// A coroutine that starts at once and reports its end.
struct Task {
    struct promise_type {
        std::atomic<int> state{0};
        Task get_return_object() { return Task{std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        auto final_suspend() noexcept {
            struct Announce {
                bool await_ready() noexcept { return false; }
                void await_suspend(std::coroutine_handle<promise_type> self) noexcept {
                    self.promise().state.store(1);
                    self.promise().state.notify_all();
                }
                void await_resume() noexcept {}
            };
            return Announce{};
        }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
    void wait() const { handle.promise().state.wait(0); }
};

Task copy_and_check(const memferry::Mover &mover, std::span<const int> source, std::span<int> target, bool &is_equal) {
    co_await mover.async(memferry::copy(source, target));
    mf_operation compare{};
    compare.opcode = MF_COMPARE;
    compare.source = source.data();
    compare.source_2 = target.data();
    compare.size = source.size_bytes();
    mf_result result = co_await mover.async(compare);
    is_equal = result.outcome == MF_EQUAL;
    bool is_refused = false;
    try {
        compare.source_2 = nullptr;
        co_await mover.async(compare);
    } catch (const memferry::Error &error) {
        is_refused = error.status() == MF_INVALID_ARGUMENT;
    }
    is_equal = is_equal && is_refused;
}

}  // namespace

int main() {
    memferry::Emulator emulator;
    memferry::Machine machine = memferry::Machine::from_profile("two-tiers");
    memferry::Mover mover(machine, {.devices = MF_DEVICES_NONE, .route = 0, .cpu_workers = 0, .emulator = emulator.get()});
    std::vector<int> source(1 << 16, 7), target(source.size());
    bool is_equal = false;
    Task task = copy_and_check(mover, source, target, is_equal);
    task.wait();
    // The thread that completed the last operation may still be in its callback.
    mover.drain();
    task.handle.destroy();
    std::printf("%s\n", is_equal ? "equal" : "different");
    return is_equal ? 0 : 1;
}
