// Stages that share a GPU: ranks are threads here, each with its own stream.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "core/error.h"
#include "thread_messages.h"
#include "train/parallel/timed_link.h"

namespace mr::train {
namespace {

using comm::on_ranks;

class DeviceStageLinkTest : public cuda::GpuTest {};

constexpr std::int64_t kCount = 100003;

// A stage's tensors and its stream.
struct Stage {
    explicit Stage(comm::Comm& comm) : number(comm.rank()) {
        std::vector<int> ranks(static_cast<std::size_t>(comm.size()));
        std::iota(ranks.begin(), ranks.end(), 0);
        link = make_device_stage_link(comm, ranks, 1);
        link->attach(&stream);
    }
    Tensor filled(float value) {
        const Tensor x = memory.tensor(DType::f32, {kCount});
        fill(x, value);
        return x;
    }
    void fill(Tensor x, float value) {
        const std::vector<float> host(kCount, value);
        stream.to_device(x.data, host.data(), x.bytes(), nullptr);
        stream.synchronize();
    }
    void expect(Tensor x, float value) {
        std::vector<float> host(kCount);
        stream.to_host(host.data(), x.data, x.bytes(), nullptr);
        stream.synchronize();
        EXPECT_EQ(host.front(), value) << "stage " << number;
        EXPECT_EQ(host.back(), value) << "stage " << number;
    }

    int number;
    cuda::Stream stream;
    cuda::DeviceArena memory{"stage", std::size_t{32} << 20};
    std::unique_ptr<TimedLink> link;
};

// A receive requested early does not block other transfers, in either direction.
TEST_F(DeviceStageLinkTest, NeighboursSendBothWaysInOrder) {
    for (const int stages : {2, 4}) {
        on_ranks(stages, [&](comm::Comm& comm) {
            Stage stage(comm);
            const int me = stage.number, last = stages - 1;
            for (int step = 0; step < 2; ++step) {
                const auto value = [&](int from, int number) {
                    return static_cast<float>(1000 * step + 10 * from + number);
                };
                std::vector<Tensor> in[2], out[2];
                std::vector<model::StageLink::Ticket> received[2], sent;
                for (int direction = 0; direction < 2; ++direction) {
                    const int from = direction == 0 ? me - 1 : me + 1;
                    for (int n = 0; n < 3 && from >= 0 && from <= last; ++n) {
                        in[direction].push_back(stage.filled(-1));
                        received[direction].push_back(
                            stage.link->receive(from, in[direction].back()));
                    }
                }
                for (int n = 0; n < 3; ++n) {
                    for (int direction = 0; direction < 2; ++direction) {
                        const int to = direction == 0 ? me + 1 : me - 1;
                        if (to < 0 || to > last) continue;
                        out[direction].push_back(stage.filled(value(me, n)));
                        sent.push_back(stage.link->send(to, out[direction].back()));
                    }
                }
                for (int direction = 0; direction < 2; ++direction) {
                    const int from = direction == 0 ? me - 1 : me + 1;
                    for (std::size_t n = 0; n < in[direction].size(); ++n) {
                        stage.link->wait(received[direction][n]);
                        stage.expect(in[direction][n], value(from, static_cast<int>(n)));
                    }
                }
                for (const auto ticket : sent) stage.link->wait(ticket);
                stage.link->meet();
                stage.memory.reset();
            }
            EXPECT_GE(stage.link->waited_seconds(), 0);
            const double mine[] = {static_cast<double>(me)};
            EXPECT_EQ(stage.link->gather(mine)[static_cast<std::size_t>(last)], last);
            if (me != 0 && me != last) return;
            const Tensor own = stage.filled(static_cast<float>(me)), other = stage.filled(-1);
            stage.link->swap(last - me, own, other);
            stage.expect(other, static_cast<float>(last - me));
        });
    }
}

// A send waits for the operations before it.
TEST_F(DeviceStageLinkTest, WaitsForTheStreamThatComputes) {
    on_ranks(2, [&](comm::Comm& comm) {
        Stage stage(comm);
        const Tensor x = stage.filled(-1), made = stage.filled(7), room = stage.filled(0);
        if (stage.number == 1) {
            stage.link->wait(stage.link->receive(0, x));
            stage.expect(x, 7);
        } else {
            for (int i = 0; i < 3000; ++i) {
                stage.stream.on_device(room.data, made.data, made.bytes());
            }
            stage.stream.on_device(x.data, room.data, x.bytes());
            const auto ticket = stage.link->send(1, x);
            stage.link->wait(ticket);
            stage.stream.fill(x.data, 0, x.bytes());  // after the send
        }
        stage.link->meet();
    });
}

TEST_F(DeviceStageLinkTest, ASilentStageIsNamed) {
    on_ranks(
        2,
        [&](comm::Comm& comm) {
            Stage stage(comm);
            if (stage.number == 1) return;
            const Tensor x = stage.filled(0);
            try {
                stage.link->wait(stage.link->receive(1, x));
                ADD_FAILURE() << "stage 1 has sent nothing";
            } catch (const comm::LostRank& error) {
                EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos)
                    << error.what();
            }
        },
        0.5);
}

}  // namespace
}  // namespace mr::train
