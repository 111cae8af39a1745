// The query pipeline of the thesis: SELECT sum(b) WHERE a < limit. Threads scan chunks of column a while the cache
// prefetches the same chunks of column b; then the aggregation reads b, near if its copy is ready.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memferry.hpp>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

namespace {

constexpr mf_node dram = 0, hbm = 1;
constexpr std::size_t rows = 1 << 18, chunk = 1 << 13, threads_count = 2;
constexpr std::uint64_t limit = 300;

std::span<const std::uint64_t> part(const std::vector<std::uint64_t> &column, std::size_t index) {
    return std::span(column).subspan(index * chunk, chunk);
}

}  // namespace

int main() {
    std::vector<std::uint64_t> a(rows), b(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        a[row] = row * 7919 % 1000;
        b[row] = row;
    }

    // mf_machine_discover and the nodes of the columns on a real machine.
    memferry::Machine machine = memferry::Machine::from_profile("two-tiers");
    memferry::Mover mover(machine, {.devices = MF_DEVICES_NONE, .route = 0, .cpu_workers = 0, .emulator = {0}});
    const mf_budget budget{.node = hbm, .bytes = rows * sizeof(std::uint64_t)};
    memferry::Cache cache(mover, std::span(&budget, 1));
    memferry::Region region = cache.register_chunked(std::span<const std::uint64_t>(b), chunk * sizeof(std::uint64_t), dram);

    constexpr std::size_t chunks = rows / chunk;
    std::vector<std::vector<std::uint8_t>> masks(chunks, std::vector<std::uint8_t>(chunk));
    std::vector<std::uint64_t> sums(threads_count);
    std::vector<std::size_t> near(threads_count);
    {
        std::vector<std::jthread> threads;
        for (std::size_t thread = 0; thread < threads_count; ++thread) {
            threads.emplace_back([&, thread] {
                // SCAN a, PREFETCH b
                for (std::size_t index = thread; index < chunks; index += threads_count) {
                    memferry::Entry prefetched = cache.access(part(b, index)); // does not wait
                    auto values = part(a, index);
                    std::transform(values.begin(), values.end(), masks[index].begin(),
                                   [](std::uint64_t value) { return value < limit; });
                }
                // AGGREGATE b
                for (std::size_t index = thread; index < chunks; index += threads_count) {
                    constexpr std::size_t bytes = chunk * sizeof(std::uint64_t);
                    memferry::View view = cache.view(region, index * bytes, bytes);
                    auto values = view.data<std::uint64_t>();
                    near[thread] += values.data() != part(b, index).data();
                    for (std::size_t row = 0; row < chunk; ++row) sums[thread] += masks[index][row] * values[row];
                }
            });
        }
    }
    std::uint64_t sum = std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}), expected = 0;
    for (std::size_t row = 0; row < rows; ++row) expected += a[row] < limit ? b[row] : 0;
    std::printf("sum %llu, %zu of %zu chunks near\n", static_cast<unsigned long long>(sum),
                std::accumulate(near.begin(), near.end(), std::size_t{0}), chunks);
    return sum == expected ? 0 : 1;
}
