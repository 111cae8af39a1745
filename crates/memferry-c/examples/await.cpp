// co_await: operations in the order of the code, without a waiting thread.
#include <array>
#include <coroutine>
#include <cstdio>
#include <exception>
#include <future>
#include <memferry.hpp>
#include <span>
#include <vector>

namespace {

/// A coroutine that starts at once. Its result is a future: the thread that completes the last operation ends the coroutine.
struct Task {
    struct promise_type {
        std::promise<bool> result;
        Task get_return_object() { return Task{result.get_future()}; }
        std::suspend_never initial_suspend() noexcept { return {}; }
        std::suspend_never final_suspend() noexcept { return {}; }
        void return_value(bool value) { result.set_value(value); }
        void unhandled_exception() { result.set_exception(std::current_exception()); }
    };
    std::future<bool> result;
};

Task copy_and_check(const memferry::Mover &mover, std::span<const int> source, std::span<int> target) {
    co_await mover.async(memferry::copy(source, target));
    mf_operation compare{};
    compare.opcode = MF_COMPARE;
    compare.source = source.data();
    compare.source_2 = target.data();
    compare.size = source.size_bytes();
    mf_result result = co_await mover.async(compare);
    bool is_refused = false;
    try {
        compare.source_2 = nullptr;
        co_await mover.async(compare);
    } catch (const memferry::Error &error) {
        is_refused = error.status() == MF_INVALID_ARGUMENT;
    }
    co_return result.outcome == MF_EQUAL && is_refused;
}

}  // namespace

int main() {
    memferry::Emulator emulator;
    memferry::Machine machine = memferry::Machine::from_profile("two-tiers");
    memferry::Mover mover(machine, {.devices = MF_DEVICES_NONE, .route = 0, .cpu_workers = 0, .emulator = emulator.get()});
    std::vector<int> source(1 << 16, 7), target(source.size());
    // A batch: both halves, started together.
    const std::span<const int> from(source);
    const std::span<int> to(target);
    const std::size_t half = from.size() / 2;
    const std::array halves{memferry::copy(from.first(half), to.first(half)),
                            memferry::copy(from.subspan(half), to.subspan(half))};
    for (const memferry::Transfer &transfer : mover.submit(halves)) transfer.wait();
    if (source != target) return 1;

    target.assign(target.size(), 0);
    bool is_equal = copy_and_check(mover, source, target).result.get();
    std::printf("%s\n", is_equal ? "equal" : "different");
    return is_equal ? 0 : 1;
}
