// Stages that send to each other while they compute: ranks are threads here.
#include "train/parallel/host_link.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "thread_messages.h"

namespace mr::train {
namespace {

using comm::on_ranks;
using Ticket = model::StageLink::Ticket;

std::unique_ptr<HostLink> link_of(comm::Comm& comm) {
    std::vector<int> all(static_cast<std::size_t>(comm.size()));
    std::iota(all.begin(), all.end(), 0);
    return std::make_unique<HostLink>(comm.split(all, 1), comm.split(all, 2));
}

Tensor tensor(std::vector<float>& of) {
    return {of.data(), DType::f32, {static_cast<std::int64_t>(of.size())}};
}

// Every stage requests its input before it sends what others wait for, in both directions.
TEST(HostLink, NeighboursSendEachOtherWithoutWaiting) {
    constexpr int kPasses = 20;
    on_ranks(3, [&](comm::Comm& comm) {
        const auto link = link_of(comm);
        const int me = comm.rank();
        for (const std::size_t size : {1, 1000, 30000}) {
            for (int pass = 0; pass < kPasses; ++pass) {
                std::vector<std::vector<float>> in(2), out(2);
                std::vector<Ticket> tickets;
                for (const int other : {me - 1, me + 1}) {
                    if (other < 0 || other >= comm.size()) continue;
                    const std::size_t at = other < me ? 0 : 1;
                    in[at].resize(size);
                    out[at].assign(size, static_cast<float>(100 * me + pass));
                    tickets.push_back(link->receive(other, tensor(in[at])));
                    tickets.push_back(link->send(other, tensor(out[at])));
                }
                for (const Ticket ticket : tickets) link->wait(ticket);
                for (const int other : {me - 1, me + 1}) {
                    if (other < 0 || other >= comm.size()) continue;
                    const auto want = static_cast<float>(100 * other + pass);
                    EXPECT_EQ(in[other < me ? 0 : 1], std::vector<float>(size, want));
                }
            }
        }
        link->wait(model::StageLink::kNone);
    });
}

TEST(HostLink, MessagesThatWereAskedForEarlyComeInTheirOrder) {
    on_ranks(2, [&](comm::Comm& comm) {
        const auto link = link_of(comm);
        std::vector<std::vector<float>> data(10, std::vector<float>(100, -1));
        std::vector<Ticket> tickets;
        for (std::size_t i = 0; i < data.size(); ++i) {
            if (comm.first()) {
                data[i].assign(100, static_cast<float>(i));
                tickets.push_back(link->send(1, tensor(data[i])));
            } else {
                tickets.push_back(link->receive(0, tensor(data[i])));
            }
        }
        // The last is waited for first.
        for (std::size_t i = data.size(); i-- > 0;) {
            link->wait(tickets[i]);
            EXPECT_EQ(data[i][99], static_cast<float>(i));
        }
    });
}

TEST(HostLink, StagesShareNumbersAndEndsATable) {
    on_ranks(4, [&](comm::Comm& comm) {
        const auto link = link_of(comm);
        const double mine[] = {comm.rank() + 0.5, -1};
        const std::vector<double> all = link->gather(mine);
        EXPECT_EQ(all, (std::vector<double>{0.5, -1, 1.5, -1, 2.5, -1, 3.5, -1}));
        if (comm.rank() == 1 || comm.rank() == 2) return;
        std::vector<float> table(1001, static_cast<float>(comm.rank())), other(1001);
        link->swap(3 - comm.rank(), tensor(table), tensor(other));
        EXPECT_EQ(other, std::vector<float>(1001, static_cast<float>(3 - comm.rank())));
    });
}

// A missing stage is named by its rank, and pending transfers do not keep others from ending.
TEST(HostLink, AStageThatStaysAwayIsNamed) {
    on_ranks(
        3,
        [](comm::Comm& comm) {
            if (comm.rank() == 0) return;
            const int two[] = {2, 0};  // stage 1 is rank 0
            if (comm.rank() == 1) return;
            HostLink link(comm.split(two, 1), comm.split(two, 2));
            std::vector<float> x(10), y(10);
            link.receive(1, tensor(y));
            try {
                link.wait(link.receive(1, tensor(x)));
                FAIL() << "nothing was thrown";
            } catch (const comm::LostRank& error) {
                EXPECT_NE(std::string(error.what()).find("rank 0 has not answered"),
                          std::string::npos)
                    << error.what();
            }
            EXPECT_GT(link.waited_seconds(), 0.1);
        },
        0.2);
}

}  // namespace
}  // namespace mr::train
